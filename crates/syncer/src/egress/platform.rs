//! Addresses of the host's API server, to which the broker makes no connection. Its name can get other ones, such as those of a load balancer, and one
//! answer may have only some of them. So it is looked up again and again, and what was found counts for a while. As long as nothing was found, no
//! connection is made that could lead there.

use berth_runtime::locks::lock;
use berth_sync_rules::egress::policy::ConnectError;
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

/// Time from one look-up to the next.
const REFRESH: Duration = Duration::from_secs(30);
/// The same while nothing is known.
const RETRY: Duration = Duration::from_secs(3);
/// How long an address counts that is not found any more.
const KEPT: Duration = Duration::from_mins(30);

/// The host's API server.
#[derive(Debug)]
pub(super) struct Platform {
    /// Its name or address.
    host: String,
    /// Its addresses, and when they were last found.
    found: Mutex<BTreeMap<IpAddr, Instant>>,
}

impl Platform {
    /// The API server with this name or address, as a URL has it.
    pub(super) fn new(host: &str) -> Self {
        let platform = Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            found: Mutex::default(),
        };
        platform.note(platform.host.parse::<IpAddr>(), Instant::now());
        platform
    }

    /// Its addresses.
    ///
    /// # Errors
    /// They are not known yet.
    pub(super) fn addresses(&self) -> Result<Vec<IpAddr>, ConnectError> {
        let found = lock(&self.found);
        if found.is_empty() {
            return Err(ConnectError::unavailable("the platform is starting; try again"));
        }
        Ok(found.keys().copied().collect())
    }

    /// Looks the name up for ever.
    pub(super) async fn keep(&self) {
        if self.host.parse::<IpAddr>().is_ok() {
            return std::future::pending().await;
        }
        loop {
            match tokio::net::lookup_host((self.host.as_str(), 443)).await {
                Ok(found) => self.note(found.map(|address| address.ip()), Instant::now()),
                Err(error) => tracing::warn!(%error, "the addresses of the host's API server are not known"),
            }
            let is_known = self.addresses().is_ok();
            tokio::time::sleep(if is_known { REFRESH } else { RETRY }).await;
        }
    }

    /// Notes what a look-up has found.
    fn note(&self, addresses: impl IntoIterator<Item = IpAddr>, now: Instant) {
        let addresses = addresses.into_iter().map(|address| (address.to_canonical(), now));
        let mut found = lock(&self.found);
        found.extend(addresses);
        found.retain(|_, seen| now.saturating_duration_since(*seen) < KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_needs_no_look_up() {
        for (host, known) in [("192.168.1.1", "192.168.1.1"), ("[fd00::1]", "fd00::1")] {
            assert_eq!(Platform::new(host).addresses(), Ok(vec![address(known)]));
        }
    }

    #[test]
    fn nothing_is_reached_before_the_name_was_found() {
        let platform = Platform::new("api.example.com");
        assert_eq!(
            platform.addresses().unwrap_err().message,
            "the platform is starting; try again"
        );
    }

    #[test]
    fn addresses_count_for_a_while_after_they_were_found() {
        let platform = Platform::new("api.example.com");
        let start = Instant::now();
        let [first, second] = ["192.0.2.1", "192.0.2.2"].map(address);
        platform.note([first], start);
        let later = start + KEPT / 2;
        platform.note([second], later);
        assert_eq!(
            platform.addresses(),
            Ok(vec![first, second]),
            "an answer may have some only"
        );
        platform.note([address("::ffff:192.0.2.2")], start + KEPT);
        assert_eq!(platform.addresses(), Ok(vec![second]));
    }
}
