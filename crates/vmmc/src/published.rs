//! Figures of this process for those who look after its node.
//!
//! Invariant: to count costs an addition in this process's own memory, and nobody else can write
//! there. Source: the metrics of Prometheus, whose names and kinds these have.

use crate::error::{BufferError, ExportError};
use crate::export::Export;
use crate::session::Session;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use vmmc_host::control::Access;
use vmmc_host::published::{FigureOf, Figures, export_name};
use vmmc_nic::Rights;

/// Tells exports of figures of this process apart.
static SERIAL: AtomicU32 = AtomicU32::new(0);

/// Figures that `vmmc stats` shows, and the metrics of the node (`vmmc node run --metrics`), until
/// this is dropped.
///
/// ```
/// # use vmmc_node::{Embedded, KeySource, NodeConfig};
/// # let node = Embedded::start(NodeConfig::new("doc-publish").key(KeySource::Plain))?;
/// # let session = vmmc::Session::over(node.attach()?)?;
/// use vmmc::{FigureKind, FigureOf};
/// let hits = FigureOf { kind: FigureKind::Counter, family: "cache_hits", item: "pages" };
/// let figures = session.publish("my-cache", &[hits])?;
/// figures.add(0, 1); // the first one
/// let info = session.node_info(true)?;
/// let of = &info.published[0];
/// assert_eq!((of.source.as_str(), of.figures[0].value), ("my-cache", 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Published {
    _export: Export,
    figures: Figures,
}

impl Session {
    /// Publishes figures of this process, all 0, up to 200, under the name of whose they are; other
    /// processes may have the same. They are counted by their place in the list.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn publish(&self, source: &str, figures: &[FigureOf<'_>]) -> Result<Published, ExportError> {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = export_name(source, u64::from(self.process_id()) << 32 | u64::from(serial));
        let figures = Figures::create(figures)
            .map_err(|error| ExportError::Memory { name: name.clone(), error: BufferError::from(error) })?;
        let builder = self.export_region(figures.region().clone()).name(&name);
        let export = builder.access(Access::default()).rights(Rights::READ).create()?;
        Ok(Published { _export: export, figures })
    }
}

impl Deref for Published {
    type Target = Figures;

    fn deref(&self) -> &Figures {
        &self.figures
    }
}
