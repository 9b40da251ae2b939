//! Any bytes in memory that others read: figures, which a node reads, and channels of endpoints.
#![no_main]

use vmmc_host::published::{FAMILY_BYTES_MAX, ITEM_BYTES_MAX, read, room, source_of};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    vmmc::fuzzing::everything(data);
    figures(data);
    if let Some(source) = std::str::from_utf8(data).ok().and_then(source_of) {
        assert!(data.ends_with(source.as_bytes()));
    }
});

/// What is shown of figures is bounded, and has no bytes that a reader of text would stumble over.
fn figures(data: &[u8]) {
    let load = |at: u64, into: &mut [u8]| {
        let some = data.get(at as usize..).and_then(|rest| rest.get(..into.len()));
        some.map(|some| into.copy_from_slice(some)).is_some()
    };
    let all = read(data.len() as u64, load);
    assert!(all.len() <= room(data.len() as u64));
    for figure in all {
        assert!(figure.family.len() <= FAMILY_BYTES_MAX && figure.item.len() <= ITEM_BYTES_MAX);
        assert!(figure.family.bytes().all(|byte| byte.is_ascii_graphic()));
        assert!(!figure.item.contains(char::is_control));
        let _ = (figure.times(), figure.quantile_ns(0.5), figure.quantile_ns(0.99));
    }
}
