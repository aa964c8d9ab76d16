//! How many bytes a pod may have in the tenant, and how many more on the host. What Berth adds to a pod is not in the tenant's datastore,
//! whose size is limited. So it is limited itself: many small pods must not become large ones in the host's.

use crate::{model::json, translation::fields::FieldIssues};
use serde_json::Value;

/// Most bytes of a pod's spec in the tenant, as JSON. API servers take requests of 1.5 MiB or less, and the host's pod is larger. Schedulers and
/// kubelets keep the specs of all their pods in memory.
pub const MAX_POD_SPEC_BYTES: usize = 512 << 10;

/// Most bytes by which spec and labels of a pod are larger on the host than in the tenant, as JSON: twice [`MAX_SERVICE_VARIABLE_BYTES`]. Apart from these variables
/// Berth adds a few KiB to a pod: longer names of ConfigMaps and Secrets, affinity to nodes, and labels.
pub const MAX_ADDED_POD_BYTES: usize = 128 << 10;

/// Most bytes that the variables of Services have in all containers of a pod together, as JSON: those of about a hundred Services in one
/// container. A kernel starts no program whose variables and arguments have more than a few times as much.
pub const MAX_SERVICE_VARIABLE_BYTES: usize = 64 << 10;

/// Most labels of a namespace that its pods carry on the host. Namespaces have about ten.
pub const MAX_NAMESPACE_LABELS: usize = 64;

/// Most bytes of the tokens and certificates of a pod, which are in one Secret. All authorities that browsers trust have some 220 KB.
pub const MAX_POD_SECRET_BYTES: usize = 256 << 10;

/// Denies a pod whose spec is too large in the tenant, or that becomes too much larger as `host`.
pub fn check_pod_bytes(pod: &Value, host: &Value, issues: &mut FieldIssues) {
    // Ephemeral containers come later, and those that do not fit are left out.
    let of_ephemeral = |pod: &Value| json::at(pod, &["spec", "ephemeralContainers"]).map_or(0, count_bytes);
    let bytes_of_spec = |pod: &Value| count_bytes(&pod["spec"]).saturating_sub(of_ephemeral(pod));
    let spec = bytes_of_spec(pod);
    if spec > MAX_POD_SPEC_BYTES {
        let why = format!(
            "it has {spec} bytes, and may have at most {MAX_POD_SPEC_BYTES}: schedulers and nodes keep it in memory. Put data into \
             ConfigMaps and Secrets"
        );
        issues.deny("spec", why);
    }
    // What annotations may have is limited where they are made.
    let with_labels = |pod: &Value| bytes_of_spec(pod) + json::at(pod, &["metadata", "labels"]).map_or(0, count_bytes);
    let added = with_labels(host).saturating_sub(with_labels(pod));
    if added > MAX_ADDED_POD_BYTES {
        let why = format!(
            "the pod becomes {added} bytes larger on the host, and may become at most {MAX_ADDED_POD_BYTES} larger: schedulers and \
             nodes keep it in memory. Use fewer containers, variables that refer to fields, ConfigMaps and Secrets, tolerations and terms \
             of affinity"
        );
        issues.deny("spec", why);
    }
}

/// The bytes of a value as JSON.
pub fn count_bytes(value: &Value) -> usize {
    let mut bytes = ByteCounter(0);
    // Counting cannot fail, and no key of a `Value` is anything but a text.
    drop(serde_json::to_writer(&mut bytes, value));
    bytes.0
}

/// Counts what is written to it.
struct ByteCounter(usize);

impl std::io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
