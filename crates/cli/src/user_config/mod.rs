//! The kubeconfig of the user: as a document, and as a file.

pub(crate) mod cluster;
pub(crate) mod document;
pub(crate) mod file;
pub(crate) mod read;
