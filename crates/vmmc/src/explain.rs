//! Which path an import's transfers take, and why not a better one.
//!
//! Invariant: what is said here is what the transfers do; the path is decided when the import is
//! made.

use serde::{Serialize, Serializer};
use std::fmt;
use vmmc_host::control::NotMapped;

/// How an import's transfers go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Copies into the mapped memory of the exporter.
    Mapped,
    /// Descriptors to the engine of this node, which copies.
    Engine,
    /// Descriptors to the engine of this node, packets to that of another.
    Network,
}

/// Why an import goes the way it goes. `Display` gives a paragraph for people, `Serialize` fields
/// for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The import, as in `"frames" (export 12.3 of process 77 on node a)`.
    pub import: String,
    /// Node of the export.
    pub node: String,
    /// The path.
    pub path: Path,
    /// Why it is not [`Path::Mapped`].
    #[serde(serialize_with = "reason")]
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

fn reason<S: Serializer>(why: &Option<NotMapped>, serializer: S) -> Result<S::Ok, S::Error> {
    why.map(|why| why.to_string()).serialize(serializer)
}

impl Path {
    /// What a transfer costs.
    fn cost(self) -> &'static str {
        match self {
            Path::Mapped => "each transfer is a copy by the caller into the exporter's memory: no system call, no node",
            Path::Engine => "each transfer is a descriptor that the engine of this node carries out with one copy",
            Path::Network => "each transfer is a descriptor that the engine of this node sends on in packets",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Path::Mapped => "mapped",
            Path::Engine => "engine",
            Path::Network => "network",
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "import {} ({} bytes on node {:?}, {})", self.import, self.len, self.node, self.rights)?;
        writeln!(f, "  path: {}: {}.", self.path, self.path.cost())?;
        if let Some(why) = self.not_mapped {
            writeln!(f, "  not mapped, because {why}.")?;
            if let Some(advice) = advice(why) {
                writeln!(f, "  to change that: {advice}.")?;
            }
        }
        if self.path == Path::Network {
            let words =
                if self.sealed { "encrypted and authenticated" } else { "plain: no encryption, no authentication" };
            writeln!(f, "  packets: {words}.")?;
        }
        let notify = if self.notify { "delivered when a send asks for one" } else { "not allowed by the exporter" };
        writeln!(f, "  notifications: {notify}.")?;
        if self.redirectable {
            writeln!(f, "  redirection: the exporter may let data go elsewhere.")?;
        }
        match &self.broken {
            None => write!(f, "  state: open."),
            Some(why) => write!(f, "  state: unusable: {why}."),
        }
    }
}

fn advice(why: NotMapped) -> Option<&'static str> {
    Some(match why {
        NotMapped::OtherNode | NotMapped::Ring => return None,
        NotMapped::Redirectable => "export it without redirection",
        NotMapped::SharesPages => "export memory that the library allocates, or whole pages",
        NotMapped::NoReadRight => "import with the read right too",
        NotMapped::RightsNotExpressible => "import with the write right too",
        NotMapped::NotAllowed => "export it as mappable",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_says_why_and_what_to_do() {
        let explanation = Explanation {
            import: "\"frames\"".into(),
            node: "a".into(),
            path: Path::Engine,
            not_mapped: Some(NotMapped::NoReadRight),
            len: 4096,
            rights: "write".into(),
            sealed: true,
            notify: false,
            redirectable: false,
            broken: None,
        };
        let text = explanation.to_string();
        assert!(text.contains("path: engine") && text.contains("cannot be write-only"), "{text}");
        assert!(text.contains("to change that: import with the read right too"), "{text}");
    }
}
