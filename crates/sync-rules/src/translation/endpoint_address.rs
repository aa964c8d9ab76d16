//! Which addresses an endpoint that the tenant writes itself may have. Translation and the egress broker ask here, so that
//! an address is open to both or to neither.
//!
//! | address | rule |
//! |---|---|
//! | of one of the tenant's own pods | allowed, wherever it lies |
//! | in a network that the class offers, and open | allowed |
//! | in a network that the class offers, and closed | denied: of the platform, of the host's pods, Services and nodes, of a metadata service, or a form of such an address |
//! | any other | denied |
//! | as an endpoint, in a network that the host's admission policy closes, or a form of an IPv4 address | denied, even if it is the address of one of the tenant's own pods: the policy cannot tell |

use super::workload_address;
use crate::model::Cache;
use berth_api::{
    NetworkLimits,
    ranges::{self, FORMS_OF_V4},
};
use ipnet::IpNet;
use std::net::IpAddr;

/// Why an endpoint may have an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// It is the address of one of the tenant's own pods.
    OwnPod,
    /// It is in a network that the class offers for endpoints, and in no closed one.
    Offered,
}

/// Why an endpoint may not have an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No workload can have it.
    NoWorkload,
    /// It is neither a pod's nor offered.
    Foreign,
    /// It is offered, in a network that is never open.
    Closed,
}

impl Denied {
    /// The reason, in words that follow the address.
    pub fn why(self) -> &'static str {
        match self {
            Self::NoWorkload => "is not an address of a workload",
            Self::Foreign => "is neither an address of one of your pods nor in a network that is offered for endpoints",
            Self::Closed => "is in a network of the platform, which is never open to endpoints",
        }
    }
}

/// Networks of a tenant in which there are no pods of the host, and in which its endpoints may lie.
pub struct OfferedNetworks {
    offered: Vec<IpNet>,
    closed: Vec<IpNet>,
    closed_to_endpoints: Vec<IpNet>,
}

impl OfferedNetworks {
    /// Those of a tenant with these limits.
    pub fn new(network: &NetworkLimits) -> Self {
        // A range of the class that cannot be parsed offers nothing.
        let offered = network
            .endpoint_cidrs
            .iter()
            .filter_map(|text| ranges::parse(text).ok());
        Self {
            offered: offered.collect(),
            closed: closed_networks_of(network),
            closed_to_endpoints: ranges::blocking(&network.closed_to_endpoints),
        }
    }

    /// Whether an endpoint may have an address that is not of one of the tenant's own pods.
    pub fn allow(&self, address: IpAddr) -> bool {
        workload_address::is_workload_address(address)
            && self.check(address).is_ok()
            && !self.is_closed_to_endpoints(address)
    }

    fn check(&self, address: IpAddr) -> Result<(), Denied> {
        let is_in = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&address));
        if !is_in(&self.offered) {
            Err(Denied::Foreign)
        } else if is_in(&self.closed) || workload_address::special(address).is_some() {
            Err(Denied::Closed)
        } else {
            Ok(())
        }
    }

    /// The host's admission policy rejects forms of IPv4 addresses whoever has them.
    fn is_closed_to_endpoints(&self, address: IpAddr) -> bool {
        let mut closed = self.closed_to_endpoints.iter().chain(FORMS_OF_V4);
        closed.any(|network| network.contains(&address))
    }
}

/// The rules of a tenant at one moment.
pub struct EndpointAddresses<'a> {
    cache: &'a Cache,
    networks: OfferedNetworks,
}

impl<'a> EndpointAddresses<'a> {
    /// The rules as they are now.
    pub fn new(cache: &'a Cache) -> Self {
        Self {
            cache,
            networks: OfferedNetworks::new(&cache.tenant.network),
        }
    }

    /// Whether the tenant may reach an address, as an endpoint or directly.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, address: IpAddr) -> Result<Allowed, Denied> {
        if !workload_address::is_workload_address(address) {
            Err(Denied::NoWorkload)
        } else if self.cache.pod_addresses().contains(address) {
            Ok(Allowed::OwnPod)
        } else {
            self.networks.check(address).map(|()| Allowed::Offered)
        }
    }

    /// Whether an endpoint on the host may have an address.
    ///
    /// # Errors
    /// Why not.
    pub fn check_endpoint(&self, address: IpAddr) -> Result<Allowed, Denied> {
        let allowed = self.check(address)?;
        if self.networks.is_closed_to_endpoints(address) {
            Err(Denied::Closed)
        } else {
            Ok(allowed)
        }
    }
}

/// Networks that are never open to the tenant. Control lists those of the platform and those that the class blocks.
pub fn closed_networks(cache: &Cache) -> Vec<IpNet> {
    closed_networks_of(&cache.tenant.network)
}

fn closed_networks_of(network: &NetworkLimits) -> Vec<IpNet> {
    let listed = if network.closed.is_empty() {
        &network.blocked
    } else {
        &network.closed
    };
    ranges::never_open().chain(ranges::blocking(listed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{resource::Name, tenant::test_tenant},
        registry,
    };
    use proptest::prelude::*;
    use std::sync::Arc;

    const OFFERED: &[&str] = &[
        "10.0.0.0/8",
        "100.64.0.0/10",
        "168.63.0.0/16",
        "::/0",
        "240.0.0.0/4",
        "oops",
    ];
    const BLOCKED: &[&str] = &["10.96.0.0/16", "10.244.0.0/16", "10.5.0.10/32", "fd96::/64"];
    const OWN_POD: &str = "10.244.1.7";

    fn cache(offered: &[&str], blocked: &[&str]) -> Cache {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        let mut tenant = test_tenant();
        let network = Arc::make_mut(&mut tenant.network);
        network.endpoint_cidrs = texts(offered);
        network.blocked = texts(blocked);
        let cache = registry::new_cache(tenant);
        cache
            .pod_addresses()
            .set(&Name::new("a", "p"), [OWN_POD.parse().unwrap()].into());
        cache
    }

    fn check(cache: &Cache, address: &str) -> Result<Allowed, Denied> {
        EndpointAddresses::new(cache).check(address.parse().unwrap())
    }

    #[test]
    fn offered_networks_do_not_open_closed_ones() {
        let cache = cache(OFFERED, BLOCKED);
        for address in ["10.20.0.1", "100.64.0.1", "168.63.0.1", "fd20::1"] {
            assert_eq!(check(&cache, address), Ok(Allowed::Offered), "{address}");
        }
        for address in [
            // A Service, another tenant's pod and a node of the host.
            "10.96.0.1",
            "10.244.1.8",
            "10.5.0.10",
            "fd96::1",
            // Metadata services.
            "100.100.100.200",
            "168.63.129.16",
            "fd00:ec2::254",
            "240.0.0.1",
            // 169.254.169.254 behind a translator.
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "::169.254.169.254",
        ] {
            assert_eq!(check(&cache, address), Err(Denied::Closed), "{address}");
        }
        for address in [
            "169.254.169.254",
            "127.0.0.1",
            "::1",
            "fe80::1",
            "::ffff:10.20.0.1",
            "ff02::1",
        ] {
            assert_eq!(check(&cache, address), Err(Denied::NoWorkload), "{address}");
        }
        assert_eq!(check(&cache, "192.0.2.1"), Err(Denied::Foreign));
    }

    #[test]
    fn an_address_of_a_pod_is_in_no_offered_network() {
        let cache = cache(OFFERED, BLOCKED);
        let networks = OfferedNetworks::new(&cache.tenant.network);
        let allows = |address: &str| networks.allow(address.parse().unwrap());
        for address in [
            OWN_POD,
            "10.244.1.8",
            "10.96.0.1",
            "192.0.2.1",
            "127.0.0.1",
            "64:ff9b::a9fe:a9fe",
        ] {
            assert!(!allows(address), "{address}");
        }
        assert!(allows("10.20.0.1") && allows("fd20::1"));
    }

    #[test]
    fn own_pods_are_allowed_wherever_they_lie() {
        assert_eq!(check(&cache(OFFERED, BLOCKED), OWN_POD), Ok(Allowed::OwnPod));
        assert_eq!(check(&cache(&[], &["0.0.0.0/0"]), OWN_POD), Ok(Allowed::OwnPod));
        assert_eq!(check(&cache(&[], &[]), "10.244.1.8"), Err(Denied::Foreign));
    }

    #[test]
    fn no_endpoint_is_a_form_of_an_ipv4_address_even_of_an_own_pod() {
        let cache = cache(&[], &[]);
        let own = "2002:c000:201::7";
        let addresses = [own, OWN_POD].map(|address| address.parse().unwrap());
        cache.pod_addresses().set(&Name::new("a", "p"), addresses.into());
        assert_eq!(check(&cache, own), Ok(Allowed::OwnPod));
        let rules = EndpointAddresses::new(&cache);
        assert_eq!(rules.check_endpoint(own.parse().unwrap()), Err(Denied::Closed));
        assert_eq!(rules.check_endpoint(OWN_POD.parse().unwrap()), Ok(Allowed::OwnPod));
    }

    #[test]
    fn an_unreadable_blocked_network_closes_everything() {
        assert_eq!(check(&cache(OFFERED, &["oops"]), "10.20.0.1"), Err(Denied::Closed));
    }

    proptest! {
        /// Whatever a class offers, nothing closed is open but the tenant's own pods.
        #[test]
        fn nothing_closed_is_open(address: IpAddr, blocked: IpAddr, length in 0_u8..=32) {
            let blocked = IpNet::new(blocked, length).unwrap().trunc();
            let text = blocked.to_string();
            let cache = cache(&["0.0.0.0/0", "::/0"], &[&text]);
            let result = EndpointAddresses::new(&cache).check(address);
            let is_closed = blocked.contains(&address)
                || ranges::never_open().any(|network| network.contains(&address))
                || workload_address::special(address).is_some();
            let is_own = address == OWN_POD.parse::<IpAddr>().unwrap();
            prop_assert_eq!(result.is_ok(), !is_closed || is_own, "{}: {:?}", address, result);
        }
    }
}
