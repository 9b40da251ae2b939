//! What events cost: the paper's formulas, and named profiles of machines. [UTLB §6.2, Tables 1, 2;
//! NT Tables 1, 2]
//!
//! Invariant: the formulas are the paper's, term by term. The paper does not state the kernel-side
//! costs of the interrupt-based approach; 17 and 15 us (27 and 25 less one crossing of 10 us) give
//! all twelve cells of its Table 6.

use crate::sim::{Mechanism, Outcome};

/// Events per page looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Pages that the user's table did not have.
    pub check_miss: f64,
    /// Pages that the network interface's cache did not have.
    pub ni_miss: f64,
    /// Pages unpinned.
    pub unpin: f64,
}

/// A cost by number of pages or entries: measured points, straight lines between and behind them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    /// (count, us), ascending.
    pub points: &'static [(u32, f64)],
    /// Added to every point.
    pub base_us: f64,
}

impl Curve {
    /// The cost of one call with so many.
    pub fn at_us(&self, count: f64) -> f64 {
        let last = self.points.len() - 1;
        if last == 0 {
            return self.base_us + self.points[0].1;
        }
        let above = self.points.iter().position(|(n, _)| f64::from(*n) >= count).unwrap_or(last).max(1);
        let ((x0, y0), (x1, y1)) = (self.points[above - 1], self.points[above]);
        let (x0, x1) = (f64::from(x0), f64::from(x1));
        self.base_us + y0 + (y1 - y0) * (count.max(f64::from(self.points[0].0)) - x0) / (x1 - x0)
    }
}

/// The costs of one machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// As on the command line.
    pub name: &'static str,
    /// Where the figures come from.
    pub source: &'static str,
    /// The user's check of its table.
    pub user_check_us: f64,
    /// The interface's check of its cache.
    pub ni_check_us: f64,
    /// The interface interrupts the host.
    pub interrupt_us: f64,
    /// Pinning, as a system call, by pages.
    pub pin: Curve,
    /// Unpinning, as a system call, by pages.
    pub unpin: Curve,
    /// Pinning one page inside the interrupt handler.
    pub kernel_pin_us: f64,
    /// Unpinning one page inside the interrupt handler.
    pub kernel_unpin_us: f64,
    /// A miss in the interface's cache, by entries fetched.
    pub ni_miss: Curve,
}

const NI_MISS: Curve = Curve { points: &[(1, 1.8), (2, 1.9), (4, 1.9), (8, 2.3), (16, 2.8), (32, 3.2)], base_us: 0.0 };

/// UTLB's own platform.
pub const PAPER: Profile = Profile {
    name: "paper",
    source: "UTLB Tables 1 and 2, section 6.2: 300 MHz Pentium II, Windows NT 4.0, LANai 4.2",
    user_check_us: 0.5,
    ni_check_us: 0.8,
    interrupt_us: 10.0,
    pin: Curve { points: &[(1, 27.0), (2, 30.0), (4, 36.0), (8, 47.0), (16, 70.0), (32, 115.0)], base_us: 0.0 },
    unpin: Curve { points: &[(1, 25.0), (2, 30.0), (4, 36.0), (8, 50.0), (16, 80.0), (32, 139.0)], base_us: 0.0 },
    kernel_pin_us: 17.0,
    kernel_unpin_us: 15.0,
    ni_miss: NI_MISS,
};

/// The NT paper's Windows NT: its Table 2 and the entry and exit of its Table 1.
pub const NT: Profile = Profile {
    name: "nt",
    source: "NT Tables 1 and 2: 450 MHz Pentium II, Windows NT 4.0; interface as in UTLB",
    user_check_us: 0.5,
    ni_check_us: 0.8,
    interrupt_us: 10.0,
    pin: Curve { points: &[(1, 2.9), (4, 8.9), (8, 17.0), (12, 24.0), (16, 32.8)], base_us: 14.4 },
    unpin: Curve { points: &[(1, 1.6), (4, 4.6), (8, 8.6), (12, 12.5), (16, 16.7)], base_us: 14.4 },
    kernel_pin_us: 2.9,
    kernel_unpin_us: 1.6,
    ni_miss: NI_MISS,
};

/// The NT paper's Linux.
pub const LINUX: Profile = Profile {
    name: "linux",
    source: "NT Tables 1 and 2: 450 MHz Pentium II, Linux 2.0.36; interface as in UTLB",
    pin: Curve { points: &[(1, 3.6), (4, 4.0), (8, 5.0), (12, 6.4), (16, 10.7)], base_us: 2.1 },
    unpin: Curve { points: &[(1, 2.8), (4, 11.0), (8, 19.1), (12, 28.2), (16, 34.5)], base_us: 2.1 },
    kernel_pin_us: 3.6,
    kernel_unpin_us: 2.8,
    ..NT
};

/// The machine of docs/measured.md, as `vmmc bench utlb` measured it under load: pinning in the
/// running system, from its first and later uses.
pub const HERE: Profile = Profile {
    name: "here",
    source: "measured by vmmc bench utlb: 2-core AMD virtual machine under load, Linux 6.18; pinning by moving pages in place; interrupt: waking a sleeping thread; kernel: mlock and munlock",
    user_check_us: 0.01,
    ni_check_us: 0.006,
    interrupt_us: 51.6,
    pin: Curve { points: &[(1, 203.8), (2, 279.1), (4, 324.0), (8, 340.6), (16, 809.6), (32, 1265.3)], base_us: 0.0 },
    unpin: Curve { points: &[(1, 41.4), (2, 52.2), (4, 64.0), (8, 91.5), (16, 170.0), (32, 264.2)], base_us: 0.0 },
    kernel_pin_us: 2.9,
    kernel_unpin_us: 2.1,
    ni_miss: Curve { points: &[(1, 0.03), (2, 0.04), (4, 0.05), (8, 0.08), (16, 0.15), (32, 0.28)], base_us: 0.0 },
};

/// All profiles.
pub const PROFILES: [Profile; 4] = [PAPER, NT, LINUX, HERE];

impl Profile {
    /// From its name.
    pub fn from_name(name: &str) -> Option<Profile> {
        PROFILES.into_iter().find(|profile| profile.name == name)
    }

    /// `lookup_utlb` of the paper, one page pinned and one entry fetched at a time.
    pub fn utlb_us(&self, rates: Rates) -> f64 {
        self.user_check_us
            + self.pin.at_us(1.0) * rates.check_miss
            + self.ni_check_us
            + self.ni_miss.at_us(1.0) * rates.ni_miss
            + self.unpin.at_us(1.0) * rates.unpin
    }

    /// `lookup_intr` of the paper.
    pub fn interrupt_us(&self, rates: Rates) -> f64 {
        self.ni_check_us + (self.interrupt_us + self.kernel_pin_us) * rates.ni_miss + self.kernel_unpin_us * rates.unpin
    }

    /// Pinning per page looked up: each call by its pages. [UTLB Table 7]
    pub fn pin_per_lookup_us(&self, outcome: &Outcome) -> f64 {
        let user = &outcome.total.user;
        let (large, classes) = user.pin_calls.split_last().expect("there are classes");
        let small: f64 = (0u32..).zip(classes).map(|(pages, n)| self.pin.at_us(f64::from(pages)) * *n as f64).sum();
        let mean = user.pins_large as f64 / (*large).max(1) as f64;
        (small + self.pin.at_us(mean) * *large as f64) / outcome.total.cache.lookups.max(1) as f64
    }

    /// Unpinning per page looked up: one page a call, or one region. [UTLB Table 7]
    pub fn unpin_per_lookup_us(&self, outcome: &Outcome) -> f64 {
        let user = &outcome.total.user;
        let mean = user.unpins as f64 / user.unpin_calls.max(1) as f64;
        self.unpin.at_us(mean) * user.unpin_calls as f64 / outcome.total.cache.lookups.max(1) as f64
    }

    /// The average cost of a lookup in a run.
    pub fn average_us(&self, outcome: &Outcome) -> f64 {
        let rates = outcome.rates();
        if outcome.config.mechanism == Mechanism::Interrupt {
            return self.interrupt_us(rates);
        }
        self.user_check_us
            + self.ni_check_us
            + self.pin_per_lookup_us(outcome)
            + self.unpin_per_lookup_us(outcome)
            + self.ni_miss.at_us(f64::from(outcome.config.prefetch)) * rates.ni_miss
    }
}

/// Average host cost of a lookup from hits and misses. [NT §5.2, Tables 3 and 4]
pub fn nt_average_us(hit_percent: f64, hit_us: f64, miss_us: f64) -> f64 {
    (hit_percent * hit_us + (100.0 - hit_percent) * miss_us) / 100.0
}
