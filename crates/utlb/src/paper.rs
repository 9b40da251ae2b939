//! The papers' tables, as facts to compare with. [UTLB Tables 1 to 8; NT Tables 2 to 4]
//!
//! Invariant: numbers are as printed, columns in the order of [`App::ALL`] and of [`SIZES`]. Trap:
//! in our copy each row of Table 8 is sorted ascending, so only its rows of the direct-mapped cache
//! (which are Table 4's) can be told apart by program; of the others only the set of values is
//! usable.

use crate::generate::App;

/// Cache sizes of the study, entries.
pub const SIZES: [usize; 5] = [1024, 2048, 4096, 8192, 16384];

/// A column of Tables 1 and 2: (1, 2, 4, 8, 16, 32).
pub type Six = [f64; 6];

/// Counts of Tables 1 and 2.
pub const COUNTS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Table 1: check, least, us.
pub const T1_CHECK_MIN: Six = [0.2; 6];
/// Table 1: check, most, us.
pub const T1_CHECK_MAX: Six = [0.4, 0.6, 0.6, 0.6, 0.6, 0.7];
/// Table 1: pin, us.
pub const T1_PIN: Six = [27.0, 30.0, 36.0, 47.0, 70.0, 115.0];
/// Table 1: unpin, us.
pub const T1_UNPIN: Six = [25.0, 30.0, 36.0, 50.0, 80.0, 139.0];
/// Table 2: DMA, us.
pub const T2_DMA: Six = [1.5, 1.6, 1.6, 1.9, 2.1, 2.5];
/// Table 2: miss, us.
pub const T2_MISS: Six = [1.8, 1.9, 1.9, 2.3, 2.8, 3.2];

/// One program of Tables 3, 4 and 5.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Table 3.
    pub problem: &'static str,
    /// Table 3: distinct pages a node.
    pub footprint: u64,
    /// Table 3: lookups a node.
    pub lookups: u64,
    /// Table 4: check misses.
    pub t4_check: f64,
    /// Table 4: misses in the interface, both mechanisms.
    pub t4_ni: [f64; 5],
    /// Table 4: unpins of the interrupt-based mechanism.
    pub t4_intr_unpin: [f64; 5],
    /// Table 5: check misses.
    pub t5_check: f64,
    /// Table 5: misses in the interface, UTLB.
    pub t5_ni: [f64; 5],
    /// Table 5: unpins of UTLB, at every size.
    pub t5_unpin: f64,
    /// Table 5: misses in the interface, interrupts.
    pub t5_intr_ni: [f64; 5],
    /// Table 5: unpins, interrupts.
    pub t5_intr_unpin: [f64; 5],
    /// Table 7: pin cost with 1 and 16 pages, unpin cost with 1 and 16, us; Volrend is not in it.
    pub t7: Option<[f64; 4]>,
}

/// The rows of a program.
pub fn row(app: App) -> Row {
    match app {
        App::Barnes => Row {
            problem: "32K particles",
            footprint: 2235,
            lookups: 35_904,
            t4_check: 0.04,
            t4_ni: [0.10, 0.07, 0.05, 0.04, 0.04],
            t4_intr_unpin: [0.09, 0.04, 0.02, 0.01, 0.00],
            t5_check: 0.04,
            t5_ni: [0.10, 0.07, 0.05, 0.04, 0.04],
            t5_unpin: 0.0,
            t5_intr_ni: [0.10, 0.07, 0.05, 0.04, 0.04],
            t5_intr_unpin: [0.09, 0.04, 0.02, 0.01, 0.00],
            t7: Some([1.0, 0.8, 0.1, 0.1]),
        },
        App::Fft => Row {
            problem: "4M elements",
            footprint: 10_803,
            lookups: 43_132,
            t4_check: 0.25,
            t4_ni: [0.50, 0.50, 0.49, 0.46, 0.38],
            t4_intr_unpin: [0.49, 0.48, 0.46, 0.40, 0.25],
            t5_check: 0.49,
            t5_ni: [0.50, 0.50, 0.50, 0.50, 0.49],
            t5_unpin: 0.40,
            t5_intr_ni: [0.50, 0.50, 0.49, 0.48, 0.47],
            t5_intr_unpin: [0.49, 0.48, 0.46, 0.42, 0.39],
            t7: Some([6.1, 15.8, 0.1, 93.0]),
        },
        App::Lu => Row {
            problem: "4K x 4K matrix",
            footprint: 12_507,
            lookups: 25_198,
            t4_check: 0.49,
            t4_ni: [0.50, 0.49, 0.49, 0.49, 0.49],
            t4_intr_unpin: [0.46, 0.43, 0.37, 0.33, 0.17],
            t5_check: 0.49,
            t5_ni: [0.50, 0.49, 0.49, 0.49, 0.49],
            t5_unpin: 0.33,
            t5_intr_ni: [0.50, 0.49, 0.49, 0.49, 0.49],
            t5_intr_unpin: [0.46, 0.43, 0.37, 0.34, 0.33],
            t7: Some([12.0, 2.3, 0.1, 0.1]),
        },
        App::Radix => Row {
            problem: "4M keys",
            footprint: 6393,
            lookups: 11_775,
            t4_check: 0.54,
            t4_ni: [0.62, 0.60, 0.57, 0.55, 0.54],
            t4_intr_unpin: [0.54, 0.44, 0.30, 0.16, 0.09],
            t5_check: 0.55,
            t5_ni: [0.62, 0.60, 0.58, 0.56, 0.55],
            t5_unpin: 0.21,
            t5_intr_ni: [0.62, 0.60, 0.57, 0.56, 0.55],
            t5_intr_unpin: [0.54, 0.44, 0.31, 0.23, 0.21],
            t7: Some([13.0, 7.3, 0.1, 10.8]),
        },
        App::Raytrace => Row {
            problem: "256 x 256 car",
            footprint: 6319,
            lookups: 14_594,
            t4_check: 0.43,
            t4_ni: [0.48, 0.46, 0.45, 0.44, 0.43],
            t4_intr_unpin: [0.41, 0.33, 0.24, 0.14, 0.07],
            t5_check: 0.43,
            t5_ni: [0.48, 0.46, 0.45, 0.44, 0.43],
            t5_unpin: 0.13,
            t5_intr_ni: [0.48, 0.46, 0.45, 0.44, 0.43],
            t5_intr_unpin: [0.41, 0.35, 0.28, 0.21, 0.17],
            t7: Some([10.5, 5.0, 0.8, 3.5]),
        },
        App::Volrend => Row {
            problem: "256^3 CST head",
            footprint: 2371,
            lookups: 9438,
            t4_check: 0.25,
            t4_ni: [0.31, 0.29, 0.27, 0.25, 0.25],
            t4_intr_unpin: [0.22, 0.13, 0.07, 0.03, 0.01],
            t5_check: 0.25,
            t5_ni: [0.31, 0.29, 0.27, 0.25, 0.25],
            t5_unpin: 0.0,
            t5_intr_ni: [0.31, 0.29, 0.27, 0.25, 0.25],
            t5_intr_unpin: [0.22, 0.13, 0.07, 0.03, 0.01],
            t7: None,
        },
        App::Water => Row {
            problem: "15,625 molecules",
            footprint: 1890,
            lookups: 8488,
            t4_check: 0.10,
            t4_ni: [0.35, 0.27, 0.12, 0.11, 0.10],
            t4_intr_unpin: [0.31, 0.21, 0.03, 0.02, 0.00],
            t5_check: 0.10,
            t5_ni: [0.35, 0.27, 0.12, 0.11, 0.10],
            t5_unpin: 0.0,
            t5_intr_ni: [0.35, 0.27, 0.12, 0.11, 0.10],
            t5_intr_unpin: [0.31, 0.21, 0.03, 0.02, 0.00],
            t7: Some([2.5, 1.5, 0.1, 0.1]),
        },
    }
}

/// Table 6: (program, entries, UTLB us, interrupts us).
pub const T6: [(App, usize, f64, f64); 6] = [
    (App::Barnes, 1024, 2.6, 4.9),
    (App::Barnes, 4096, 2.5, 2.5),
    (App::Barnes, 16384, 2.5, 1.9),
    (App::Fft, 1024, 9.0, 21.7),
    (App::Fft, 4096, 8.9, 20.9),
    (App::Fft, 16384, 8.7, 14.8),
];

/// Table 8 by size: 2-way with offset, 4-way with offset, direct without; each row sorted
/// ascending.
pub const T8: [[[f64; 7]; 3]; 5] = [
    [
        [0.12, 0.30, 0.32, 0.48, 0.49, 0.50, 0.63],
        [0.13, 0.30, 0.30, 0.49, 0.50, 0.51, 0.63],
        [0.36, 0.50, 0.51, 0.57, 0.60, 0.78, 0.90],
    ],
    [
        [0.06, 0.26, 0.27, 0.46, 0.48, 0.50, 0.60],
        [0.07, 0.22, 0.26, 0.47, 0.48, 0.50, 0.60],
        [0.35, 0.42, 0.48, 0.57, 0.60, 0.74, 0.90],
    ],
    [
        [0.05, 0.11, 0.25, 0.45, 0.47, 0.49, 0.57],
        [0.04, 0.10, 0.25, 0.44, 0.46, 0.49, 0.57],
        [0.27, 0.35, 0.47, 0.56, 0.60, 0.71, 0.90],
    ],
    [
        [0.04, 0.10, 0.25, 0.44, 0.44, 0.49, 0.55],
        [0.04, 0.10, 0.25, 0.41, 0.43, 0.49, 0.55],
        [0.27, 0.35, 0.46, 0.56, 0.57, 0.71, 0.90],
    ],
    [
        [0.04, 0.10, 0.25, 0.37, 0.43, 0.49, 0.54],
        [0.04, 0.10, 0.25, 0.34, 0.43, 0.49, 0.54],
        [0.27, 0.35, 0.46, 0.50, 0.55, 0.71, 0.90],
    ],
];

/// One column of NT Tables 3 and 4.
#[derive(Clone, Copy, Debug)]
pub struct NtColumn {
    /// Program.
    pub app: &'static str,
    /// Host lookup hit rate, percent.
    pub hit_percent: f64,
    /// Cost of a hit, us.
    pub hit_us: f64,
    /// Cost of a miss on NT and predicted on Linux, us.
    pub miss_us: [f64; 2],
    /// Average as printed, NT and Linux, us.
    pub average_us: [f64; 2],
}

const fn nt(app: &'static str, hit_percent: f64, hit_us: f64, miss_us: [f64; 2], average_us: [f64; 2]) -> NtColumn {
    NtColumn { app, hit_percent, hit_us, miss_us, average_us }
}

/// NT Table 3: no limit.
pub const NT_T3: [NtColumn; 7] = [
    nt("vis", 99.93, 0.65, [63.4, 41.7], [0.69, 0.68]),
    nt("glaze", 99.99, 0.63, [557.1, 410.1], [0.69, 0.67]),
    nt("vdd", 99.99, 2.41, [1294.0, 882.0], [2.54, 2.50]),
    nt("fft", 79.38, 0.32, [50.7, 34.7], [10.71, 7.41]),
    nt("barnes", 98.62, 0.46, [57.5, 40.5], [1.25, 1.01]),
    nt("radix", 67.36, 0.32, [54.6, 42.0], [18.04, 13.92]),
    nt("water", 99.35, 0.40, [60.0, 47.4], [0.79, 0.71]),
];

/// NT Table 4: with a limit.
pub const NT_T4: [NtColumn; 4] = [
    nt("fft", 64.46, 0.36, [42.2, 21.6], [15.23, 7.91]),
    nt("barnes", 96.67, 0.50, [49.6, 29.3], [2.13, 1.45]),
    nt("radix", 54.99, 0.35, [68.7, 46.4], [31.1, 21.1]),
    nt("water", 97.63, 0.40, [32.8, 8.6], [1.27, 0.59]),
];

/// NT Table 2: pages, then pin and unpin on Linux, pin and unpin on NT, us, without the call.
pub const NT_T2: [(u32, [f64; 4]); 5] = [
    (1, [3.6, 2.8, 2.9, 1.6]),
    (4, [4.0, 11.0, 8.9, 4.6]),
    (8, [5.0, 19.1, 17.0, 8.6]),
    (12, [6.4, 28.2, 24.0, 12.5]),
    (16, [10.7, 34.5, 32.8, 16.7]),
];
