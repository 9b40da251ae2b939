//! Formats: what is written is read back; what is damaged is refused.

use super::*;
use crate::ids::Process;
use proptest::prelude::*;

fn record() -> impl Strategy<Value = Record> {
    let op = proptest::sample::select(Op::ALL.to_vec());
    (0..1_000_000u64, any::<u16>(), op, 0..1u64 << 59, 0..1u32 << 20).prop_map(
        |(time_ns, process, op, address, len_bytes)| Record {
            time_ns,
            process: Process(process),
            op,
            address,
            len_bytes,
        },
    )
}

fn trace() -> impl Strategy<Value = Vec<Record>> {
    proptest::collection::vec(record(), 0..60).prop_map(|mut records| {
        records.sort_by_key(|r| r.time_ns);
        records
    })
}

fn written(format: Format, pack: bool, records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let count = write("t", &mut bytes, format, pack, records.iter().map(|r| Ok(*r))).expect("a vector takes all");
    assert!(format == Format::Oracle || count == records.len() as u64);
    bytes
}

fn read_all(format: Format, bytes: &[u8]) -> Result<Vec<Record>, TraceError> {
    read("t", bytes, format)?.collect()
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(records in trace(), pack in any::<bool>()) {
        for format in [Format::Own, Format::Csv] {
            let back = read_all(format, &written(format, pack, &records)).expect("undamaged");
            prop_assert_eq!(&back, &records, "{:?}", format);
        }
    }

    #[test]
    fn any_cut_of_our_own_format_is_noticed(records in trace(), cut in any::<prop::sample::Index>()) {
        let bytes = written(Format::Own, false, &records);
        let cut = &bytes[..cut.index(bytes.len())];
        prop_assert!(read_all(Format::Own, cut).is_err());
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), damage in trace(),
                                    at in any::<prop::sample::Index>(), with in any::<u8>()) {
        for format in Format::ALL {
            let _ = read_all(format, &bytes);
            let mut own = written(Format::Own, with % 2 == 0, &damage);
            let at = at.index(own.len());
            own[at] = with;
            let _ = read_all(format, &own);
        }
    }
}

fn three() -> Vec<Record> {
    let at = |time_ns, process, address| Record {
        time_ns,
        process: Process(process),
        op: Op::Send,
        address,
        len_bytes: 4096,
    };
    vec![at(1, 1, 0x1000), at(2, 2, 0x1000), at(3, 1, 0x5000)]
}

#[test]
fn the_oracle_knows_when_a_page_is_next_used() {
    let mut records = three();
    records.push(Record { time_ns: 4, ..records[0] });
    let bytes = written(Format::Oracle, false, &records);
    let next = |i: usize| i64::from_le_bytes(bytes[i * 24 + 16..i * 24 + 24].try_into().expect("8 bytes"));
    assert_eq!([next(0), next(1), next(2), next(3)], [3, i64::MAX, i64::MAX, i64::MAX]);
    let pages: Vec<u64> =
        read_all(Format::Oracle, &bytes).expect("undamaged").iter().map(|r| r.address >> 12).collect();
    assert_eq!(pages, [1 << 36 | 1, 2 << 36 | 1, 1 << 36 | 5, 1 << 36 | 1]);
}

#[test]
fn refusals_name_file_offset_and_reason() {
    let message = |format, text: &str| read_all(format, text.as_bytes()).expect_err("damaged").to_string();
    assert_eq!(
        message(Format::Din, "0 1000\n2 2000\n"),
        "t: byte 7: line 2: label \"2\"; 0 (read) and 1 (write) are transfers"
    );
    assert_eq!(
        message(Format::Csv, "time,process\n"),
        "t: byte 0: line 1: the head is \"time,process\" and not \"time_ns,process,op,address,length\""
    );
    let head = "time_ns,process,op,address,length\n";
    let later = format!("{head}20,1,send,0,1\n10,1,send,0,1\n");
    assert_eq!(message(Format::Csv, &later), "t: byte 48: time 10 ns after 20 ns; sort the trace");
    let far = format!("{head}1,1,send,0xffffffffffffffff,1\n");
    assert!(
        message(Format::Csv, &far).contains("leave the address space of 60 bits"),
        "{}",
        message(Format::Csv, &far)
    );
    assert!(message(Format::Own, "hello, world").contains("not a trace of this format"));
    let mut bytes = written(Format::Own, false, &three());
    bytes.push(0);
    assert_eq!(read_all(Format::Own, &bytes).expect_err("longer").reason, Reason::Trailing);
    assert_eq!(read_all(Format::Oracle, &[0; 30]).expect_err("cut").reason, Reason::Truncated);
}

#[test]
fn a_record_of_a_regular_program_takes_few_bytes() {
    let records: Vec<Record> = (0..1000)
        .map(|i| Record { time_ns: i * 100, process: Process(1), op: Op::Send, address: i * 4096, len_bytes: 4096 })
        .collect();
    assert!(written(Format::Own, false, &records).len() < 3100);
    assert!(written(Format::Own, true, &records).len() < 200);
}

#[test]
fn traces_are_merged_by_time_and_kept_apart_on_request() {
    let merged = |apart| -> Vec<(u64, u16)> {
        let inputs: Vec<Records> = vec![Box::new(three().into_iter().map(Ok)), Box::new(three().into_iter().map(Ok))];
        Merge::new(inputs, apart).map(|r| r.expect("no error")).map(|r| (r.time_ns, r.process.0)).collect()
    };
    assert_eq!(merged(false), [(1, 1), (1, 1), (2, 2), (2, 2), (3, 1), (3, 1)]);
    assert_eq!(merged(true), [(1, 0), (1, 1), (2, 2), (2, 3), (3, 0), (3, 1)]);
}

#[test]
fn the_format_is_told_by_the_name() {
    for (name, format) in [
        ("a.csv", Format::Csv),
        ("b.din.zst", Format::Din),
        ("x.oracleGeneral.zst", Format::Oracle),
        ("t.vmmc", Format::Own),
    ] {
        assert_eq!(Format::of_file(name), format);
    }
}
