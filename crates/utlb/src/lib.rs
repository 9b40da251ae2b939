//! User-managed translation (UTLB): tables, caches and replacement policies, and a simulator that
//! drives the same types by traces.
//!
//! ```text
//!   process                       driver                     engine
//!   Pinning ── PinRequest ──▶ pins, installs ──▶ HierarchicalTable / IndexTable
//!   (PageTable, Policy)       Budget (dynamic limit)          │ fetch at a miss
//!      └─────────────────── page or index ──────────▶ SharedCache ──▶ Frame
//! ```
//!
//! **Promises.** No I/O, no clock, no unsafe; no threads but in the sweep. The simulator (feature
//! `sim`, on by default) has no tables of its own: it runs these. What a process says about
//! addresses or indices can at worst lead to the garbage page.
//!
//! **Does not.** It pins nothing: it says what to pin. Without the feature `sim` it writes traces
//! and does not read them.
//!
//! ```
//! use vmmc_utlb::{CacheShape, Frame, HierarchicalTable, Page, Pages};
//! use vmmc_utlb::{PinRequest, Pinning, PolicyKind, Prepin};
//! use vmmc_utlb::{Process, SharedCache, Translation};
//!
//! let me = Process(1);
//! let mut user = Pinning::new(PolicyKind::Lru.build(), Prepin::Fixed(1), Some(1024));
//! let mut table = HierarchicalTable::new(Frame(0));
//! let mut cache = SharedCache::new(CacheShape::PAPER);
//!
//! // First use: pin and install. Later uses: a look at the user's table.
//! let buffer = Pages::of_bytes(0x7f00_0000_1000, 8192).unwrap();
//! let mut request = PinRequest::default();
//! if !user.lookup(buffer) {
//!     user.miss(buffer, &mut request).unwrap();
//!     for page in &request.pin {
//!         table.install(*page, Frame(page.number() % 1000)).unwrap();
//!         user.pinned(*page);
//!     }
//! }
//! // The engine: the cache, then the table.
//! let page = buffer.first();
//! assert_eq!(cache.find(me, page), None);
//! let Translation::Frame(frame) = table.translate(page) else { panic!("not installed") };
//! cache.fill(me, page, frame);
//! assert_eq!(cache.find(me, page), Some(frame));
//! ```

#![forbid(unsafe_code)]

pub mod limits;

#[cfg(feature = "sim")]
pub mod cost;
#[cfg(feature = "sim")]
pub mod generate;
#[cfg(feature = "sim")]
pub mod paper;
#[cfg(feature = "sim")]
pub mod report;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "sim")]
pub mod trace;

mod budget;
mod cache;
mod classify;
mod counters;
mod directory;
mod hierarchical;
mod ids;
mod index_table;
mod page_table;
mod pinning;
mod policy;
mod record;
mod regions;
mod rng;

pub use budget::{Budget, BudgetAction, BudgetError, Decision};
pub use cache::{CacheShape, ShapeError, SharedCache};
pub use classify::{Classifier, MissKind};
pub use counters::{CacheCounters, PinCounters};
pub use hierarchical::{DiskBlock, HierarchicalTable, SecondLevel, TableError, Translation};
pub use ids::{Frame, Index, Page, Pages, Process, Slot, Tag};
pub use index_table::{IndexError, IndexTable};
pub use page_table::{PageSet, PageTable};
pub use pinning::{MissError, PinRequest, Pinning, Prepin, Unpin};
pub use policy::{AnyPolicy, Clock, Fifo, Held, Lfu, Lru, Mfu, Mru, Policy, PolicyKind, Random, S3Fifo, Sieve};
pub use record::{Op, OwnWriter, Record};
pub use regions::{RegionCache, Registration};
pub use rng::Rng;
