//! Which path, and why.
use crate::NotMapped;
use serde::Serialize;

/// How an import's transfers go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Copies into the mapped memory of the exporter.
    Mapped,
    /// Descriptors to the engine of this node.
    Engine,
    /// Descriptors to the engine of this node, packets to that of another.
    Network,
}

/// Why an import goes the way it goes. `Display` gives a paragraph for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The import, as in `"frames" on b`.
    pub import: String,
    /// Node of the export.
    pub node: String,
    /// The path.
    pub path: Path,
    /// Why it is not [`Path::Mapped`].
    pub not_mapped: Option<NotMapped>,
    /// Bytes.
    pub len: u64,
    /// Rights, as in `read+write`.
    pub rights: String,
    /// Whether packets are encrypted and authenticated; true when there are none.
    pub sealed: bool,
    /// Whether notifications can be asked for.
    pub notify: bool,
    /// Whether the exporter may redirect.
    pub redirectable: bool,
    /// Why it cannot be used any more.
    pub broken: Option<String>,
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} goes by {:?}", self.import, self.path)
    }
}
