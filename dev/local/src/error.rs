//! Why a host cluster could not be started or used.

use std::path::PathBuf;
use std::time::Duration;

/// What can go wrong with a host cluster. Messages say what to do where something can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A Kubernetes, etcd or kwok binary is missing.
    #[error(transparent)]
    Binary(#[from] berth_process::binaries::NotFound),
    /// A process could not be supervised, or a file could not be written.
    #[error(transparent)]
    Process(#[from] berth_process::Error),
    /// A key or certificate could not be made or read.
    #[error(transparent)]
    Pki(#[from] berth_pki::Error),
    /// A stored key or certificate does not fit.
    #[error("{} is damaged: {source}; remove the cluster with `berth dev down` and start again", path.display())]
    DamagedPki {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: berth_pki::Error,
    },
    /// A file of the home could not be read, written or removed.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried, as an infinitive ("read").
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The directory holds something other than a host cluster.
    #[error("{} is not empty and not the home of a Berth host cluster; choose another directory", .0.display())]
    NotAHome(PathBuf),
    /// Somebody else may have written what is in the home.
    #[error(
        "{home} is the home of a host cluster that another user made, or that others can enter: it is not used, because what is in it can run \
         commands as you. Use it as the user who made it; if that is you, run `chmod 700 {home}`. To use another cluster, name its kubeconfig \
         with --kubeconfig or in KUBECONFIG",
        home = .0.display()
    )]
    NotPrivate(PathBuf),
    /// The home was not created where it is, so somebody else may have written what is in it.
    #[error(
        "{home} is a copy of the home of a host cluster, or an earlier version of Berth made it: it is not used, because what is in it can run \
         commands as you. Remove it with `berth dev down`, of the version that made it, or remove the directory, and start a new cluster. To use \
         another cluster, name its kubeconfig with --kubeconfig or in KUBECONFIG",
        home = .0.display()
    )]
    CopiedHome(PathBuf),
    /// A kubeconfig of the home has what this crate does not write.
    #[error(
        "{} has the field {field}, which Berth does not write: it is not used, because such a file can run commands as you. Take out the field, or \
         name another kubeconfig with --kubeconfig or in KUBECONFIG",
        path.display()
    )]
    ForeignKubeconfig {
        /// The file.
        path: PathBuf,
        /// The field, as in `users[].user.exec`.
        field: String,
    },
    /// A generated kubeconfig is not usable.
    #[error("cannot use the kubeconfig of the host cluster: {0}")]
    Kubeconfig(String),
    /// The host API server refused a request.
    #[error("cannot {action}: {source}")]
    Api {
        /// What was tried, as an infinitive ("create node gpu-h100-01").
        action: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// Something did not become ready in time.
    #[error("{what} is not ready after {} s; see {}", after.as_secs(), log.display())]
    NotReady {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
        /// The log that may say why.
        log: PathBuf,
    },
    /// An image cannot be made of what is on this machine.
    #[error("cannot make the image {reference}: {reason}")]
    Image {
        /// Its name.
        reference: String,
        /// Why, and what to do where something can be done.
        reason: String,
    },
    /// A namespace, link, mount or container of a real node could not be made or removed.
    #[error("cannot {line}: {why}")]
    Node {
        /// What was tried.
        line: String,
        /// The answer.
        why: String,
    },
    /// This machine cannot have the requested real nodes.
    #[error("{0}; use simulated nodes instead")]
    NoRealNodes(String),
    /// helm failed.
    #[error("helm {command}: {why}")]
    Helm {
        /// Its arguments.
        command: String,
        /// Its message.
        why: String,
    },
    /// A background task died.
    #[error("a background task ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Error {
    /// For `map_err` on requests to the API server.
    pub(crate) fn api(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        |source| Self::Api {
            action,
            source: Box::new(source),
        }
    }
}
