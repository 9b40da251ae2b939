//! What the semantics paper concluded from its figures, held against ours; and our promise.
//!
//! Invariant: a conclusion is said to hold or not by a rule that is stated with it; one whose
//! figures were not measured is left out.

use super::{Figure, Row};
use serde::Serialize;

/// A conclusion of the paper.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Conclusion {
    /// What the paper says.
    pub(super) says: &'static str,
    /// When it is taken to hold here.
    pub(super) rule: &'static str,
    /// What was found.
    pub(super) found: String,
    pub(super) holds: bool,
}

/// Whether the choice by size is near the best of what it chooses from.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) path: &'static str,
    pub(super) size_bytes: u64,
    /// Of the best rate.
    pub(super) ratio: f64,
    pub(super) met: bool,
}

/// The techniques that DMA stands for in the paper.
const BY_DMA: [&str; 4] = ["copydma", "directdma", "v2pdma", "pexdma"];
/// Techniques are as good as each other within this: the paper's maxima are within 0.92 and 0.95.
const SAME: f64 = 0.85;
/// The largest short message of the paper.
const SHORT_BYTES: u64 = 1024;

/// Figures on one node, where all conclusions were drawn.
struct Figures<'r>(Vec<&'r Row>);

impl<'r> Figures<'r> {
    fn new(rows: &'r [Row]) -> Figures<'r> {
        Figures(rows.iter().filter(|row| row.path == "same-node").collect())
    }

    fn rate(&self, figure: Figure, technique: &str, size: u64) -> Option<f64> {
        let is_it = |row: &&&Row| row.figure == figure && row.technique == technique && row.size_bytes == size;
        self.0.iter().find(is_it).map(|row| row.rate)
    }

    fn best(&self, figure: Figure, technique: &str) -> Option<f64> {
        let rates = self.0.iter().filter(|row| row.figure == figure && row.technique == technique);
        rates.map(|row| row.rate).max_by(f64::total_cmp)
    }

    /// The best rates of some techniques: least and most.
    fn span(&self, figure: Figure, techniques: &[&str]) -> Option<(f64, f64)> {
        let best: Option<Vec<f64>> = techniques.iter().map(|one| self.best(figure, one)).collect();
        let best = best?;
        Some((best.iter().copied().fold(f64::INFINITY, f64::min), best.iter().copied().fold(0.0, f64::max)))
    }

    fn sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.0.iter().map(|row| row.size_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// All that can be held against these figures.
pub(super) fn of(rows: &[Row]) -> Vec<Conclusion> {
    let figures = Figures::new(rows);
    let all = [
        senders_alike(&figures),
        pio_for_short(&figures),
        pio_saturates(&figures),
        receivers_alike(&figures),
        copy_for_short(&figures),
        sender_limits(&figures),
        copies_cost_nothing(&figures),
    ];
    all.into_iter().flatten().collect()
}

fn gb(rate: f64) -> String {
    format!("{:.2} GB/s", rate / 1e9)
}

fn senders_alike(figures: &Figures<'_>) -> Option<Conclusion> {
    let (least, most) = figures.span(Figure::Sender, &BY_DMA)?;
    Some(Conclusion {
        says: "senders by DMA all reach about the same rate (87 to 92 MB/s)",
        rule: "the best rates of copydma, directdma, v2pdma and pexdma, sender alone, are within 0.85",
        found: format!("{} to {}, {:.2}", gb(least), gb(most), least / most),
        holds: least / most >= SAME,
    })
}

fn pio_for_short(figures: &Figures<'_>) -> Option<Conclusion> {
    let sizes: Vec<u64> = figures.sizes().into_iter().filter(|size| *size <= SHORT_BYTES).collect();
    let ratio = |size: u64| {
        let pio = figures.rate(Figure::Sender, "pio", size)?;
        let best = BY_DMA.iter().filter_map(|one| figures.rate(Figure::Sender, one, size)).fold(0.0, f64::max);
        Some(pio / best)
    };
    let worst = sizes.into_iter().filter_map(ratio).min_by(f64::total_cmp)?;
    Some(Conclusion {
        says: "PIO is ahead for short messages, up to 1,024 bytes",
        rule: "pio's rate, sender alone, is the highest at every size up to 1,024 bytes",
        found: format!("{worst:.2} x the best other, at worst"),
        holds: worst >= 1.0,
    })
}

fn pio_saturates(figures: &Figures<'_>) -> Option<Conclusion> {
    let pio = figures.best(Figure::Sender, "pio")?;
    let (_, most) = figures.span(Figure::Sender, &BY_DMA)?;
    Some(Conclusion {
        says: "PIO saturates far below DMA (50 of 92 MB/s)",
        rule: "pio's best rate, sender alone, is below 0.6 x the best of those by DMA",
        found: format!("{} of {}, {:.2}", gb(pio), gb(most), pio / most),
        holds: pio / most < 0.6,
    })
}

fn receivers_alike(figures: &Figures<'_>) -> Option<Conclusion> {
    let (least, most) = figures.span(Figure::Receiver, &BY_DMA)?;
    Some(Conclusion {
        says: "receivers all reach about the same rate (91 to 99 MB/s)",
        rule: "the best rates of copydma, directdma, v2pdma and pexdma, receiver alone, are within 0.85",
        found: format!("{} to {}, {:.4}", gb(least), gb(most), least / most),
        holds: least / most >= SAME,
    })
}

fn copy_for_short(figures: &Figures<'_>) -> Option<Conclusion> {
    let sizes = figures.sizes();
    let copy = |size| figures.rate(Figure::Receiver, "copydma", size);
    let exchange = |size| figures.rate(Figure::Receiver, "pexdma", size);
    let page = sizes.iter().copied().find(|size| *size >= 4096)?;
    let ratio = copy(page)? / exchange(page)?;
    let from = sizes
        .iter()
        .copied()
        .find(|size| Some(true) == copy(*size).zip(exchange(*size)).map(|(c, e)| e > c && *size >= 4096));
    let from =
        from.map_or("at no size measured".into(), |size| format!("from {} on", crate::report::units::size(size)));
    Some(Conclusion {
        says: "for little data a copy is faster than an exchange of pages, which needs a system call",
        rule: "copydma's rate, receiver alone, is above pexdma's for one page",
        found: format!("{ratio:.2} x for {}; the exchange is ahead {from}", crate::report::units::size(page)),
        holds: ratio > 1.0,
    })
}

fn sender_limits(figures: &Figures<'_>) -> Option<Conclusion> {
    let sender = figures.best(Figure::Sender, "copydma")?;
    let receiver = figures.best(Figure::Receiver, "copydma")?;
    Some(Conclusion {
        says: "the sender is what limits a transfer, and not the receiver",
        rule: "copydma, where both sides work: the receiver's best rate alone is above the sender's",
        found: format!("{} beside {}", gb(receiver), gb(sender)),
        holds: receiver > sender,
    })
}

fn copies_cost_nothing(figures: &Figures<'_>) -> Option<Conclusion> {
    let (copying, _) = figures.span(Figure::Both, &["copydma"])?;
    let (_, without) = figures.span(Figure::Both, &["directdma", "v2pdma"])?;
    Some(Conclusion {
        says: "copies that are pipelined hardly cost bandwidth, so choose by semantics",
        rule: "copydma's best rate, both sides, is at least 0.85 x the best without copies",
        found: format!("{} beside {}, {:.2}", gb(copying), gb(without), copying / without),
        holds: copying / without >= SAME,
    })
}

/// The technique that is chosen, at each size, beside the best of those it chooses from.
pub(super) fn auto(rows: &[Row], least: f64) -> Vec<Verdict> {
    let both = |row: &&Row| row.figure == Figure::Both;
    let of = |technique: &str, one: &Row| {
        let is_it = |row: &&Row| row.technique == technique && row.path == one.path && row.size_bytes == one.size_bytes;
        rows.iter().filter(both).find(is_it).map(|row| row.rate)
    };
    let chosen = rows.iter().filter(both).filter(|row| row.technique == "auto");
    chosen
        .map(|row| {
            let best = ["copydma", "pexdma"].iter().filter_map(|one| of(one, row)).fold(0.0, f64::max);
            let ratio = row.rate / best;
            Verdict { path: row.path, size_bytes: row.size_bytes, ratio, met: ratio >= least }
        })
        .collect()
}
