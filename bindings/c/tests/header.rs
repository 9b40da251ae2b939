//! The committed header is what the sources say, so a change of the interface shows in review; and
//! C programs see exactly the functions that it declares.

use std::path::Path;

/// `VMMC_UPDATE=1 cargo test -p vmmc-c --test header` writes the header anew.
const UPDATE: &str = "VMMC_UPDATE";

#[test]
fn the_header_is_made_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = folder.join("include/vmmc.h");
    let mut made = Vec::new();
    cbindgen::generate(folder).expect("the sources can be parsed").write(&mut made);
    let made = String::from_utf8(made).expect("sources are UTF-8");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, made).expect("the tree can be written");
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = committed.lines().zip(made.lines()).position(|(a, b)| a != b);
    assert!(
        committed == made,
        "include/vmmc.h differs from the sources from line {} on; `{UPDATE}=1 cargo test -p vmmc-c --test header` writes it anew, and a release that breaks programs needs a new soname",
        differs.map_or(committed.lines().count().min(made.lines().count()), |line| line) + 1
    );
}
