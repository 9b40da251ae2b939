//! Line charts as SVG, without dependencies.
//!
//! Invariant: the output is a complete SVG 1.1 document; names are escaped; a chart without points
//! is an empty frame.

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// (x, y).
    pub points: Vec<(f64, f64)>,
    /// Drawn as dashes: what others measured.
    pub dashed: bool,
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// Below it.
    pub x: String,
    /// Beside it.
    pub y: String,
    /// The x axis is logarithmic, to base 2.
    pub log_x: bool,
    /// Lines.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 45.0;
/// Told apart by most people with colour-blindness too (Okabe and Ito).
const COLOURS: [&str; 9] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933", "#882255"];

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A step of 1, 2 or 5 times a power of ten that makes about five of `range`.
fn step(range: f64) -> f64 {
    let rough = (range / 5.0).max(1e-9);
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|s| *s >= rough).unwrap_or(10.0 * power)
}

fn short(value: f64) -> String {
    match value {
        v if v >= 1024.0 && v % 1024.0 == 0.0 => format!("{}K", v / 1024.0),
        v => format!("{}", (v * 1e6).round() / 1e6),
    }
}

impl Chart {
    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.series.iter().flat_map(|series| &series.points)
    }

    fn scaled(&self, x: f64) -> f64 {
        if self.log_x { x.max(f64::MIN_POSITIVE).log2() } else { x }
    }

    /// The document.
    pub fn svg(&self) -> String {
        let most_y = self.points().map(|p| p.1).fold(0.0, f64::max).max(1e-9) * 1.05;
        let low = self.points().map(|p| self.scaled(p.0)).fold(f64::INFINITY, f64::min);
        let high = self.points().map(|p| self.scaled(p.0)).fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low < high { (low, high) } else { (0.0, 1.0) };
        let at_x = |x: f64| LEFT + (self.scaled(x) - low) / (high - low) * (WIDTH - LEFT - RIGHT);
        let at_y = |y: f64| HEIGHT - BOTTOM - y / most_y * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
             <text x=\"{}\" y=\"18\" text-anchor=\"middle\" font-size=\"13\">{}</text>\n",
            (LEFT + WIDTH - RIGHT) / 2.0,
            escaped(&self.title)
        );
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut y = 0.0;
        while y <= most_y {
            let h = at_y(y);
            svg += &format!("<path d=\"M{LEFT} {h:.1}H{right}\" stroke=\"#ddd\"/>\n");
            svg +=
                &format!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n", LEFT - 5.0, h + 4.0, short(y));
            y += step(most_y);
        }
        let mut ticks: Vec<f64> = self.points().map(|p| p.0).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        for x in ticks.iter().step_by(ticks.len().div_ceil(10).max(1)) {
            svg += &format!(
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                at_x(*x),
                bottom + 15.0,
                short(*x)
            );
        }
        svg += &format!("<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>\n");
        let middle = (LEFT + right) / 2.0;
        svg += &format!(
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
            HEIGHT - 10.0,
            escaped(&self.x)
        );
        let middle = (TOP + bottom) / 2.0;
        svg += &format!(
            "<text transform=\"translate(14 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            escaped(&self.y)
        );
        for (i, series) in self.series.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let dashes = if series.dashed { " stroke-dasharray=\"4 3\"" } else { "" };
            let points: Vec<String> =
                series.points.iter().map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y))).collect();
            let points = points.join(" ");
            svg += &format!(
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{dashes}/>\n"
            );
            let y = TOP + 14.0 * i as f64 + 8.0;
            svg += &format!(
                "<path d=\"M{} {y}h18\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/><text x=\"{}\" y=\"{}\">{}</text>\n",
                right + 8.0,
                right + 30.0,
                y + 4.0,
                escaped(&series.name)
            );
        }
        svg + "</svg>\n"
    }
}
