//! Ranges of addresses in policies, as far as the tenant may open them.

use crate::model::json;
use berth_api::ranges;
use ipnet::IpNet;
use serde_json::{Value, json};

/// A range as a policy of the tenant names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The range.
    pub cidr: IpNet,
    /// Ranges that are excluded from it.
    pub except: Vec<IpNet>,
}

impl Block {
    /// All addresses of both families.
    pub fn everything() -> [Self; 2] {
        [ranges::ALL_V4, ranges::ALL_V6].map(|cidr| Self {
            cidr,
            except: Vec::new(),
        })
    }

    /// Reads an `ipBlock`.
    ///
    /// # Errors
    /// A message for the tenant.
    pub fn read(block: &Value) -> Result<Self, String> {
        let known = ["cidr", "except"];
        if let Some(key) = block
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key)
            .find(|key| !known.contains(&key.as_str()))
        {
            return Err(format!("the field {key} is not supported"));
        }
        let except = json::items(block, &["except"]).iter();
        Ok(Self {
            cidr: ranges::parse(json::text(block, &["cidr"]).unwrap_or_default())?,
            except: except
                .map(|text| ranges::parse(text.as_str().unwrap_or_default()))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: std::net::IpAddr) -> bool {
        self.cidr.contains(&address) && !self.except.iter().any(|range| range.contains(&address))
    }

    /// Whether it has every address of `family` that a pod can have. Which addresses the pods of the host have is not known in full, so it
    /// may only except what no pod has.
    pub fn holds_pods_of(&self, family: IpNet) -> bool {
        let is_without_pods = |except: &IpNet| ranges::never_open().any(|range| range.contains(except));
        self.cidr == family && self.except.iter().all(is_without_pods)
    }

    /// Whether the whole range is blocked.
    pub fn is_blocked(&self, blocked: &[IpNet]) -> bool {
        blocked.iter().any(|range| range.contains(&self.cidr))
    }

    /// The range that lies in `allowed`, unless it is blocked or excluded as a whole.
    pub fn common(&self, allowed: IpNet, blocked: &[IpNet]) -> Option<IpNet> {
        let cidr = ranges::common(self.cidr, allowed)?;
        let mut closed = blocked.iter().chain(&self.except);
        (!closed.any(|range| range.contains(&cidr))).then_some(cidr)
    }

    /// The `ipBlock` on the host: what lies in `allowed` and is not blocked.
    pub fn within(&self, allowed: IpNet, blocked: &[IpNet]) -> Option<Value> {
        let cidr = self.common(allowed, blocked)?;
        let inside = |range: &IpNet| cidr.contains(range);
        let mut except: Vec<IpNet> = blocked.iter().chain(&self.except).copied().filter(inside).collect();
        except.sort();
        except.dedup();
        let all = except.clone();
        except.retain(|range| !all.iter().any(|other| other != range && other.contains(range)));
        let mut block = json!({"cidr": cidr.to_string()});
        if !except.is_empty() {
            block["except"] = except.iter().map(ToString::to_string).collect();
        }
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(cidr: &str, except: &[&str], allowed: &str) -> Option<Value> {
        let net = |text: &str| ranges::parse(text).unwrap();
        let blocked = ["10.0.0.0/8", "192.168.7.0/24", "169.254.0.0/16", "fd00::/16"].map(net);
        let block = Block::read(&json!({"cidr": cidr, "except": except})).unwrap();
        block.within(net(allowed), &blocked)
    }

    #[test]
    fn blocked_ranges_are_taken_out() {
        assert_eq!(
            within(
                "0.0.0.0/0",
                &["10.3.0.0/16", "172.16.0.0/12", "10.0.0.0/8"],
                "0.0.0.0/0"
            )
            .unwrap(),
            json!({"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.7.0/24"]})
        );
        assert_eq!(
            within("::/0", &[], "::/0").unwrap(),
            json!({"cidr": "::/0", "except": ["fd00::/16"]})
        );
        assert_eq!(
            within("172.16.0.0/12", &[], "0.0.0.0/0").unwrap(),
            json!({"cidr": "172.16.0.0/12"})
        );
    }

    #[test]
    fn undeclared_networks_are_denied() {
        assert_eq!(
            within("0.0.0.0/0", &["192.168.9.0/24", "172.16.0.0/12"], "192.168.0.0/16").unwrap(),
            json!({"cidr": "192.168.0.0/16", "except": ["192.168.7.0/24", "192.168.9.0/24"]})
        );
        assert_eq!(
            within("192.168.1.0/24", &[], "192.168.0.0/16").unwrap(),
            json!({"cidr": "192.168.1.0/24"})
        );
        assert_eq!(within("192.168.0.0/16", &[], "172.16.0.0/12"), None);
        assert_eq!(within("0.0.0.0/0", &["192.168.0.0/16"], "192.168.1.0/24"), None);
    }

    #[test]
    fn a_block_has_all_pods_only_if_it_excepts_none() {
        let holds = |cidr: &str, except: &[&str]| {
            let block = Block::read(&json!({"cidr": cidr, "except": except})).unwrap();
            block.holds_pods_of(ranges::ALL_V4)
        };
        assert!(holds("0.0.0.0/0", &[]) && holds("0.0.0.0/0", &["169.254.169.254/32", "127.0.0.0/8"]));
        assert!(!holds("0.0.0.0/0", &["169.254.169.254/32", "192.0.2.7/32"]));
        assert!(!holds("0.0.0.0/0", &["168.0.0.0/5"]) && !holds("0.0.0.0/1", &[]) && !holds("::/0", &[]));
    }

    #[test]
    fn addresses_in_a_blocked_range_are_denied() {
        for cidr in ["10.0.0.0/8", "10.20.0.0/16", "169.254.169.254/32", "fd00::1/128"] {
            assert_eq!(within(cidr, &[], "0.0.0.0/0"), None);
            assert_eq!(within(cidr, &[], "::/0"), None);
        }
        for cidr in ["::ffff:10.0.0.0/104", "10.0.0.0"] {
            assert!(Block::read(&json!({ "cidr": cidr })).is_err());
        }
    }
}
