//! Ranges of addresses in policies, without what no policy of a tenant may open.

use crate::{json, kinds::networks};
use ipnet::IpNet;
use serde_json::{Value, json};

/// An `ipBlock` without the blocked ranges.
///
/// # Errors
/// Why nothing of it can be had, in words for the tenant.
pub fn clip(block: &Value, blocked: &[IpNet]) -> Result<Value, String> {
    let known = ["cidr", "except"];
    if let Some(key) = block
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, _)| key)
        .find(|key| !known.contains(&key.as_str()))
    {
        return Err(format!("the field {key} is not known here"));
    }
    let cidr = networks::parse(json::text(block, &["cidr"]).unwrap_or_default())?;
    let except = json::items(block, &["except"])
        .iter()
        .map(|text| networks::parse(text.as_str().unwrap_or_default()))
        .collect::<Result<Vec<_>, _>>()?;
    clipped(cidr, except, blocked).ok_or_else(|| "these addresses belong to the platform".to_owned())
}

/// A range without `except` and the blocked ranges; `None` if it lies within one of those.
pub fn clipped(cidr: IpNet, mut except: Vec<IpNet>, blocked: &[IpNet]) -> Option<Value> {
    if blocked.iter().chain(&except).any(|range| range.contains(&cidr)) {
        return None;
    }
    except.extend(blocked.iter().copied().filter(|range| cidr.contains(range)));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn clip_with(cidr: &str, except: &[&str]) -> Result<Value, String> {
        let blocked = networks::blocked(&["10.0.0.0/8".into(), "192.168.7.0/24".into(), "fd00::/16".into()]);
        clip(&json!({"cidr": cidr, "except": except}), &blocked)
    }

    #[test]
    fn blocked_ranges_are_taken_out() {
        assert_eq!(
            clip_with("0.0.0.0/0", &["10.3.0.0/16", "172.16.0.0/12", "10.0.0.0/8"]).unwrap(),
            json!({"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.7.0/24"]})
        );
        assert_eq!(
            clip_with("::/0", &[]).unwrap(),
            json!({"cidr": "::/0", "except": ["::1/128", "fd00::/16", "fe80::/10"]})
        );
        assert_eq!(
            clip_with("192.168.0.0/16", &[]).unwrap(),
            json!({"cidr": "192.168.0.0/16", "except": ["192.168.7.0/24"]})
        );
        assert_eq!(
            clip_with("172.16.0.0/12", &[]).unwrap(),
            json!({"cidr": "172.16.0.0/12"})
        );
    }

    #[test]
    fn what_lies_within_a_blocked_range_is_not_to_be_had() {
        for cidr in [
            "10.0.0.0/8",
            "10.20.0.0/16",
            "169.254.169.254/32",
            "fd00::1/128",
            "::ffff:10.0.0.0/104",
            "10.0.0.0",
            "127.0.0.1/32",
        ] {
            let why = clip_with(cidr, &[]).unwrap_err();
            assert!(!why.contains("10.0.0.0/8") || cidr == "10.0.0.0/8", "{why}");
        }
    }
}
