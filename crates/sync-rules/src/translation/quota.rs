//! What the host's ResourceQuota says when it refuses an object, as a message for the tenant.

use berth_api::{LIMITS_NAME, counted_custom_kind, describe_host_resource, quota_resource};
use std::{borrow::Cow, fmt};

/// Words before the resources that are exceeded, as API servers write them.
const EXCEEDED: &str = "exceeded quota: ";
/// Words between the object and the reason of a refusal.
const FORBIDDEN: &str = "\" is forbidden: ";
/// Words of an API server that does not know yet what is used.
const UNKNOWN: &str = "status unknown for quota: ";
/// Words of an API server that needs requests of a container. The LimitRange beside the quota sets them: it is not there yet.
const FAILED: &str = "failed quota: ";
/// Words after the name of that quota.
const WITHOUT_REQUESTS: &str = ": must specify ";

/// The end of the names under which the host counts what claims request, all of them or those of a StorageClass.
const STORAGE: &str = "requests.storage";

/// What a class limits that the syncer counts itself, and the field.
const HOST_BYTES: (&str, &str) = ("bytes of objects on the host", "hostBytes");
const DEVICE_CLAIMS: (&str, &str) = (
    "claims of devices, with those that are made from templates",
    "resourceClaims",
);

/// The limits that an object would exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaExceeded(Vec<ExceededLimit>);

/// A limit that an object would exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ExceededLimit {
    /// Its name in the ResourceQuota.
    resource: String,
    requested: String,
    used: String,
    limit: String,
    /// The limit in the tenant's class: what it counts, and its field. None: it is one of the platform itself.
    of_class: Option<(Cow<'static, str>, Cow<'static, str>)>,
    /// The pods of a gang exceed it together.
    of_gang: Option<GangExceeds>,
}

/// How the pods of a gang exceed a limit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GangExceeds {
    /// There is no room for all of them now.
    Now,
    /// There never is: they need so much.
    Always(u64),
}

impl QuotaExceeded {
    /// Reads the message of an API server; none if it is about something else.
    pub fn parse(message: &str) -> Option<Self> {
        let text = reason(message)?.strip_prefix(EXCEEDED)?;
        let (name, text) = text.split_once(", requested: ")?;
        let (requested, text) = text.split_once(", used: ")?;
        let (used, limited) = text.split_once(", limited: ")?;
        let limits: Vec<ExceededLimit> = amounts(limited)
            .map(|(resource, limit)| ExceededLimit {
                resource: resource.into(),
                requested: amount_of(requested, resource),
                used: amount_of(used, resource),
                limit: limit.into(),
                of_class: find_class_limit(name, resource),
                of_gang: None,
            })
            .collect();
        (!limits.is_empty()).then_some(Self(limits))
    }

    /// The objects of a tenant would have more bytes on the host than its class allows.
    pub fn of_host_bytes(limit: u64) -> Self {
        Self::of_class(limit, HOST_BYTES, None)
    }

    /// The tenant would have more claims of devices on the host than its class allows.
    pub fn of_device_claims(limit: u32) -> Self {
        Self::of_class(limit.into(), DEVICE_CLAIMS, None)
    }

    /// The same of all pods of a gang, which come to the host together.
    pub fn of_claims_of_gang(limit: u32) -> Self {
        Self::of_class(limit.into(), DEVICE_CLAIMS, Some(GangExceeds::Now))
    }

    /// The pods of a gang that start together need more claims of devices than the tenant's class allows: `needed` in all.
    pub fn of_large_gang(limit: u32, needed: u64) -> Self {
        Self::of_class(limit.into(), DEVICE_CLAIMS, Some(GangExceeds::Always(needed)))
    }

    /// Whether the bytes on the host are exceeded.
    pub fn is_of_host_bytes(&self) -> bool {
        self.is_of_field(HOST_BYTES.1)
    }

    /// Whether claims of devices are exceeded.
    pub fn is_of_device_claims(&self) -> bool {
        self.is_of_field(DEVICE_CLAIMS.1)
    }

    /// Whether it is one that the syncer enforces, of this field in the tenant's class.
    fn is_of_field(&self, field: &str) -> bool {
        let is_this = |exceeded: &ExceededLimit| {
            let of_class = exceeded.of_class.as_ref();
            exceeded.resource.is_empty() && of_class.is_some_and(|(_, known)| known == field)
        };
        self.0.iter().any(is_this)
    }

    /// A limit that the syncer enforces: how many of what, and its field in the tenant's class.
    fn of_class(limit: u64, (counts, field): (&'static str, &'static str), of_gang: Option<GangExceeds>) -> Self {
        Self(vec![ExceededLimit {
            resource: String::new(),
            requested: String::new(),
            used: String::new(),
            limit: limit.to_string(),
            of_class: Some((counts.into(), field.into())),
            of_gang,
        }])
    }

    /// Whether another object of the kind would be refused as well: nothing but numbers of objects is exceeded.
    pub fn refuses_every_object(&self) -> bool {
        self.0.iter().all(|exceeded| is_count(&exceeded.resource))
    }
}

/// Whether an API server refused an object because it does not know yet what is used, or what the object's containers request by
/// default, which is over in a moment.
pub fn is_unknown(message: &str) -> bool {
    let Some(reason) = reason(message) else { return false };
    let failed = reason
        .strip_prefix(FAILED)
        .and_then(|text| text.strip_prefix(LIMITS_NAME));
    reason.starts_with(UNKNOWN) || failed.is_some_and(|text| text.starts_with(WITHOUT_REQUESTS))
}

/// What a resource of a ResourceQuota counts, and the field of the tenant's class that limits it. The platform may have quotas of its own
/// for what classes limit by name.
fn find_class_limit(quota: &str, resource: &str) -> Option<(Cow<'static, str>, Cow<'static, str>)> {
    if let Some(known) = quota_resource(resource) {
        return Some((known.counts.into(), known.field.into()));
    }
    if quota != LIMITS_NAME {
        return None;
    }
    if let Some(kind) = counted_custom_kind(resource) {
        return Some((format!("objects of {kind}").into(), "customObjects".into()));
    }
    let counts = describe_host_resource(resource)?;
    Some((counts, format!("resources, {resource},").into()))
}

/// What an API server itself says after the name of an object, as in `pods "a" is forbidden: …`. The text of a webhook, which may quote the
/// tenant's, begins otherwise.
fn reason(message: &str) -> Option<&str> {
    let (object, reason) = message.split_once(FORBIDDEN)?;
    let (resource, name) = object.split_once(" \"")?;
    (!resource.contains(' ') && !name.contains([' ', '"'])).then_some(reason)
}

/// Whether each object needs one of a resource.
fn is_count(resource: &str) -> bool {
    resource.starts_with("count/")
}

/// `resource=amount` pairs.
fn amounts(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(',').filter_map(|pair| pair.trim().split_once('='))
}

fn amount_of(text: &str, resource: &str) -> String {
    amounts(text)
        .find(|(name, _)| *name == resource)
        .map_or("0", |(_, amount)| amount)
        .to_owned()
}

impl fmt::Display for ExceededLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            requested,
            used,
            limit,
            of_class,
            of_gang,
        } = self;
        let Some((counts, field)) = of_class else {
            return write!(
                f,
                "the platform limits {resource} of this tenant to {limit}; {used} is used and this needs {requested}. Use less, \
                 or ask the platform team for more"
            );
        };
        write!(f, "this tenant may have {limit} {counts}")?;
        let mut remedy = "Delete what is no longer needed";
        // Without the amounts, the message stays the same while others come and go.
        if let Some(GangExceeds::Always(needed)) = of_gang {
            write!(
                f,
                "; the pods of this gang that start together need {needed}, so none of them starts"
            )?;
            remedy = "Use fewer pods or fewer claims for each";
        } else if of_gang.is_some() {
            f.write_str(", and the pods of this gang, which start together, have no room now")?;
        } else if requested.is_empty() {
            f.write_str(", and this has no room")?;
        } else if is_count(resource) {
            f.write_str(" and has as many")?;
        } else if quota_resource(resource).is_none() {
            write!(f, "; this needs {requested}, which is more than is left")?;
        } else {
            write!(f, "; it has {used} and this needs {requested} more")?;
        }
        write!(
            f,
            ". {remedy}, or ask the platform team to raise spec.limits.{field} of the tenant's class"
        )?;
        if resource.ends_with(STORAGE) {
            f.write_str(". Volumes that are larger than their claims request lower this limit")?;
        }
        Ok(())
    }
}

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, exceeded) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{exceeded}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_limit_and_what_to_do_but_nothing_of_the_host() {
        let text = "pods \"train-0-abcdefghijklm\" is forbidden: exceeded quota: berth-limits, requested: count/pods=1, used: \
                    count/pods=15k, limited: count/pods=15k";
        let exceeded = QuotaExceeded::parse(text).unwrap();
        assert!(exceeded.refuses_every_object());
        assert_eq!(
            exceeded.to_string(),
            "this tenant may have 15k pods (ended ones included) and has as many. Delete what is no longer needed, or ask the \
             platform team to raise spec.limits.pods of the tenant's class"
        );
    }

    #[test]
    fn several_limits_and_those_of_the_platform_itself() {
        let text = "services \"web\" is forbidden: exceeded quota: other, requested: requests.cpu=1,services.nodeports=3, used: \
                    requests.cpu=9,services.nodeports=198, limited: requests.cpu=9,services.nodeports=200";
        let exceeded = QuotaExceeded::parse(text).unwrap();
        assert!(!exceeded.refuses_every_object());
        let message = exceeded.to_string();
        assert!(
            message.starts_with("the platform limits requests.cpu of this tenant to 9; 9 is used and this needs 1."),
            "{message}"
        );
        assert!(
            message.contains("; this tenant may have 200 node ports; it has 198 and this needs 3 more."),
            "{message}"
        );
    }

    #[test]
    fn further_kinds_have_a_limit_of_the_class() {
        let text = |quota: &str| {
            format!(
                "podgroups.scheduling.k8s.io \"a\" is forbidden: exceeded quota: {quota}, requested: count/podgroups.scheduling.k8s.io=1, used: \
                 count/podgroups.scheduling.k8s.io=5k, limited: count/podgroups.scheduling.k8s.io=5k"
            )
        };
        let exceeded = QuotaExceeded::parse(&text("berth-limits")).unwrap();
        assert!(exceeded.refuses_every_object());
        assert_eq!(
            exceeded.to_string(),
            "this tenant may have 5k objects of podgroups.scheduling.k8s.io and has as many. Delete what is no longer needed, or ask the \
             platform team to raise spec.limits.customObjects of the tenant's class"
        );
        let other = QuotaExceeded::parse(&text("other")).unwrap().to_string();
        assert!(other.starts_with("the platform limits"), "{other}");
    }

    #[test]
    fn limits_by_name_are_said_in_plain_words() {
        let text = "pods \"train\" is forbidden: exceeded quota: berth-limits, requested: requests.cpu=8,requests.nvidia.com/mig-1g.10gb=1, \
                    used: requests.cpu=60,requests.nvidia.com/mig-1g.10gb=2, limited: requests.cpu=64,requests.nvidia.com/mig-1g.10gb=2";
        let exceeded = QuotaExceeded::parse(text).unwrap();
        assert!(!exceeded.refuses_every_object(), "smaller ones may fit");
        assert_eq!(
            exceeded.to_string(),
            "this tenant may have 64 requested CPU; this needs 8, which is more than is left. Delete what is no longer needed, or ask the \
             platform team to raise spec.limits.resources, requests.cpu, of the tenant's class; this tenant may have 2 requested \
             nvidia.com/mig-1g.10gb; this needs 1, which is more than is left. Delete what is no longer needed, or ask the platform team to \
             raise spec.limits.resources, requests.nvidia.com/mig-1g.10gb, of the tenant's class"
        );
        let text = "persistentvolumeclaims \"data\" is forbidden: exceeded quota: berth-limits, requested: \
                    fast.storageclass.storage.k8s.io/requests.storage=2Ti, used: \
                    fast.storageclass.storage.k8s.io/requests.storage=9Ti, limited: \
                    fast.storageclass.storage.k8s.io/requests.storage=10Ti";
        let message = QuotaExceeded::parse(text).unwrap().to_string();
        assert!(
            message.starts_with(
                "this tenant may have 10Ti requested storage of the StorageClass fast; this needs 2Ti, which"
            ),
            "{message}"
        );
        assert!(
            message.ends_with(". Volumes that are larger than their claims request lower this limit"),
            "{message}"
        );
    }

    #[test]
    fn bytes_on_the_host_are_a_limit_of_the_class() {
        let exceeded = QuotaExceeded::of_host_bytes(536_870_912);
        assert!(!exceeded.refuses_every_object(), "smaller ones may fit");
        assert!(exceeded.is_of_host_bytes() && !exceeded.is_of_device_claims());
        assert!(QuotaExceeded::of_device_claims(1).is_of_device_claims());
        assert_eq!(
            exceeded.to_string(),
            "this tenant may have 536870912 bytes of objects on the host, and this has no room. Delete what is no longer needed, or ask the \
             platform team to raise spec.limits.hostBytes of the tenant's class"
        );
    }

    #[test]
    fn a_gang_says_that_its_pods_have_no_room_together_or_what_they_need() {
        let now = QuotaExceeded::of_claims_of_gang(1000);
        assert!(!now.refuses_every_object(), "others may fit");
        assert_eq!(
            now.to_string(),
            "this tenant may have 1000 claims of devices, with those that are made from templates, and the pods of this gang, which start together, \
             have no room now. Delete what is no longer needed, or ask the platform team to raise spec.limits.resourceClaims of the tenant's class"
        );
        assert_eq!(
            QuotaExceeded::of_large_gang(1000, 1600).to_string(),
            "this tenant may have 1000 claims of devices, with those that are made from templates; the pods of this gang that start together need \
             1600, so none of them starts. Use fewer pods or fewer claims for each, or ask the platform team to raise spec.limits.resourceClaims of \
             the tenant's class"
        );
    }

    #[test]
    fn pods_without_requests_wait_for_the_default_requests() {
        let text = |quota: &str| {
            format!("pods \"a\" is forbidden: failed quota: {quota}: must specify requests.cpu for: main")
        };
        assert!(is_unknown(&text("berth-limits")));
        assert!(!is_unknown(&text("other")), "nothing sets them");
    }

    #[test]
    fn other_refusals_are_left_alone() {
        for text in [
            "",
            "pods \"a\" is forbidden: exceeded quota: x",
            "pods \"a\" is forbidden: exceeded quota: x, requested: , used: , limited: ",
            // A webhook that quotes the tenant's text.
            "admission webhook \"v.example.com\" denied the request: path \"a\" is forbidden: exceeded quota: x, requested: a=1, used: a=1, \
             limited: a=1",
            "pods \"a\" is forbidden: violates PodSecurity",
        ] {
            assert_eq!(QuotaExceeded::parse(text), None, "{text}");
        }
        assert!(is_unknown(
            "pods \"a\" is forbidden: status unknown for quota: berth-limits, resources: count/pods"
        ));
    }
}
