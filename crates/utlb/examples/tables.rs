//! Prints tables of the paper beside ours: `cargo run --release -p vmmc-utlb --example tables -- 4
//! 5 7 8`; `md` before them for Markdown.

use vmmc_utlb::cost::PAPER;
use vmmc_utlb::report::{nt_table, table};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let markdown = words.iter().any(|word| word == "md");
    for word in &words {
        let found = match word.strip_prefix("nt") {
            Some(number) => number.parse().ok().and_then(|number| nt_table(number, &PAPER)),
            None => word.parse().ok().and_then(|number| table(number, &PAPER, |_| ())),
        };
        if let Some(table) = found {
            println!(
                "{}",
                if markdown { format!("### {}\n\n{}", table.title, table.markdown()) } else { table.text() }
            );
        }
    }
}
