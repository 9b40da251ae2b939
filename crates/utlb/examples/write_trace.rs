//! Writes a generated trace: `cargo run -p vmmc-utlb --example write_trace -- APP NODE FILE`; the
//! format follows from the name of the file.

use vmmc_utlb::generate::{App, node};
use vmmc_utlb::trace::{Format, write};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [app, number, file] = &words[..] else { panic!("give a program, a node and a file") };
    let app = App::from_name(app).expect("a program of the paper");
    let records = node(app, number.parse().expect("a node, 0 to 3"), 1);
    let stream = std::fs::File::create(file).expect("a file that can be written");
    let count = write(file, stream, Format::of_file(file), file.ends_with(".zst"), records.into_iter().map(Ok));
    println!("{} records", count.expect("the disk takes them"));
}
