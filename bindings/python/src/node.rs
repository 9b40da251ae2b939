//! Nodes inside the program, and the program as a node.
//!
//! Invariant: an embedded node ends with its object and the last session attached to it.

use crate::errors::{Detached, duration, exception, invalid, wait};
use crate::session::Session;
use pyo3::prelude::*;
use vmmc::ErrorKind;
use vmmc_node::{Embedded, NodeConfig};

/// A node that lives in this process.
#[pyclass(module = "vmmc", frozen)]
pub(crate) struct Node(Detached<Embedded>);

fn config(options: Vec<String>) -> PyResult<NodeConfig> {
    NodeConfig::from_args(options).map_err(|error| invalid(error.to_string()))
}

#[pymethods]
impl Node {
    /// Starts a node in this process; it runs while callers wait.
    #[new]
    #[pyo3(signature = (name="embedded", *, listen=Vec::new(), peers=Vec::new(), plain=false, key_file=None))]
    fn new(
        py: Python<'_>,
        name: &str,
        listen: Vec<String>,
        peers: Vec<String>,
        plain: bool,
        key_file: Option<String>,
    ) -> PyResult<Node> {
        let mut options = vec!["--name".to_string(), name.to_string()];
        listen.into_iter().for_each(|address| options.extend(["--listen".to_string(), address]));
        peers.into_iter().for_each(|addresses| options.extend(["--peer".to_string(), addresses]));
        options.extend(plain.then(|| "--plain".to_string()));
        if let Some(file) = key_file {
            options.extend(["--key-file".to_string(), file]);
        }
        let config = NodeConfig { handle_signals: false, ..config(options)? };
        let node = py.detach(|| Embedded::start(config));
        Ok(Node(Detached::new(node.map_err(|error| exception(ErrorKind::NoNode, error.to_string()))?)))
    }

    /// Its name.
    #[getter]
    fn name(&self) -> String {
        self.0.name()
    }

    /// UDP addresses that it listens on, for the `peers` of others.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.0.addresses().iter().map(ToString::to_string).collect()
    }

    /// Attaches this process to it.
    #[pyo3(signature = (*, timeout=None))]
    fn attach(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Session> {
        let mut builder = vmmc::Session::builder();
        if let Some(time) = duration(timeout)? {
            builder = builder.timeout(time);
        }
        let way = self.0.attach().map_err(|error| exception(ErrorKind::System, error.to_string()))?;
        Ok(Session { inner: wait(py, None, || builder.over(way))? })
    }

    fn __repr__(&self) -> String {
        format!("<vmmc.Node {:?} at {}>", self.name(), self.addresses().join(","))
    }
}

/// Runs a node in this process until it is told to stop; options as those of `vmmc node run`.
#[pyfunction]
pub(crate) fn run_node(py: Python<'_>, options: Vec<String>) -> PyResult<()> {
    let config = config(options)?;
    py.detach(|| vmmc_node::run(config)).map_err(|error| exception(ErrorKind::NoNode, error.to_string()))
}
