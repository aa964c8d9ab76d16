//! The TCP ports of a host cluster, the same after every restart.

use berth_process::{free_port, write_atomic};
use serde::{Deserialize, Serialize};

use crate::{Error, Home};

const FILE: &str = "ports.config";

/// One port on 127.0.0.1 for everything that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// kube-apiserver.
    pub apiserver: u16,
    /// etcd of the host, for clients.
    pub etcd: u16,
    /// etcd of the host, for its peers (it has none, but listens).
    pub etcd_peer: u16,
    /// The tenants' shared etcd, for clients.
    pub datastore: u16,
    /// The tenants' shared etcd, for its peers (it has none, but listens).
    pub datastore_peer: u16,
    /// kube-controller-manager: health and metrics.
    pub controller_manager: u16,
    /// kube-scheduler: health and metrics.
    pub scheduler: u16,
    /// Control: health and metrics.
    pub control: u16,
    /// The gateway, for clients of tenants. 0 in the file of an earlier version, which had no gateway.
    #[serde(default)]
    pub gateway: u16,
    /// The gateway: health and metrics.
    #[serde(default)]
    pub gateway_admin: u16,
}

impl Ports {
    /// The ports chosen when the cluster was first started, or new ones.
    ///
    /// # Errors
    /// When the file cannot be read or written, or no port is free.
    pub(crate) fn load_or_choose(home: &Home) -> Result<Self, Error> {
        let ports = match Self::load(home)? {
            Some(ports) if ports.gateway != 0 => return Ok(ports),
            Some(ports) => Self {
                gateway: free_port()?,
                gateway_admin: free_port()?,
                ..ports
            },
            None => Self::choose_free_ports()?,
        };
        let path = home.config(FILE);
        let text = serde_json::to_vec_pretty(&ports).map_err(|error| Error::File {
            action: "encode",
            path: path.clone(),
            source: error.into(),
        })?;
        write_atomic(&path, &text, 0o600)?;
        Ok(ports)
    }

    /// The ports chosen when the cluster was first started.
    pub(crate) fn load(home: &Home) -> Result<Option<Self>, Error> {
        home.read_config(FILE)
    }

    fn choose_free_ports() -> Result<Self, Error> {
        Ok(Self {
            apiserver: free_port()?,
            etcd: free_port()?,
            etcd_peer: free_port()?,
            datastore: free_port()?,
            datastore_peer: free_port()?,
            controller_manager: free_port()?,
            scheduler: free_port()?,
            control: free_port()?,
            gateway: free_port()?,
            gateway_admin: free_port()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_stay_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path());
        home.create().unwrap();
        let first = Ports::load_or_choose(&home).unwrap();
        assert_eq!(Ports::load_or_choose(&home).unwrap(), first);

        // The file of an earlier version, without the gateway.
        let mut earlier = serde_json::to_value(first).unwrap();
        let fields = earlier.as_object_mut().unwrap();
        fields.retain(|name, _| !name.starts_with("gateway"));
        write_atomic(&home.config(FILE), earlier.to_string().as_bytes(), 0o600).unwrap();
        let completed = Ports::load_or_choose(&home).unwrap();
        assert!(completed.gateway != 0 && completed.gateway_admin != 0);
        assert_eq!(completed.control, first.control);
        assert_eq!(Ports::load_or_choose(&home).unwrap(), completed);
    }
}
