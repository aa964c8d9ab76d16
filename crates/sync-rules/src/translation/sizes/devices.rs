//! How much a claim of devices may ask for, and a template of such claims. API servers admit 32 requests with eight alternatives, each with 32 selectors and
//! as many derived attributes.
//!
//! A pod with eight GPUs and eight network cards, each with a request, an alternative and a selector of its own, has half of what these limits admit.

use super::{Measure, SizeLimit};
use serde_json::Value;

/// Alternatives of all requests of a claim.
const ALTERNATIVES: usize = 64;
/// CEL expressions of all requests of a claim.
const EXPRESSIONS: usize = 64;
/// Expressions that cost an API server of the host about as much as a request of a controller does.
const EXPRESSIONS_OF_A_REQUEST: usize = 8;

/// Limits of a ResourceClaim.
pub const RESOURCE_CLAIM: &[SizeLimit] = &limits(
    [
        "spec.devices.requests: alternatives",
        "spec.devices.requests: expressions",
    ],
    &["spec.devices.requests[]"],
    &[
        "spec.devices.requests[].exactly",
        "spec.devices.requests[].firstAvailable[]",
    ],
);

/// Limits of a ResourceClaimTemplate.
pub const RESOURCE_CLAIM_TEMPLATE: &[SizeLimit] = &limits(
    [
        "spec.spec.devices.requests: alternatives",
        "spec.spec.devices.requests: expressions",
    ],
    &["spec.spec.devices.requests[]"],
    &[
        "spec.spec.devices.requests[].exactly",
        "spec.spec.devices.requests[].firstAvailable[]",
    ],
);

/// The limits of alternatives and of expressions, with their fields in messages. `requests` and `alternatives` are paths.
const fn limits(
    [of_alternatives, of_expressions]: [&'static str; 2],
    requests: &'static [&'static str],
    alternatives: &'static [&'static str],
) -> [SizeLimit; 2] {
    [
        SizeLimit {
            field: of_alternatives,
            measure: Measure::Total {
                parents: requests,
                entries: &["exactly?", "firstAvailable[]"],
            },
            in_tenant: ALTERNATIVES,
            on_host: ALTERNATIVES,
            why: "the host's scheduler, which all tenants share, tries each with every device of every node, and control keeps all of them",
        },
        SizeLimit {
            field: of_expressions,
            measure: Measure::Total {
                parents: alternatives,
                entries: &["selectors[]", "derivedAttributes[]"],
            },
            in_tenant: EXPRESSIONS,
            on_host: EXPRESSIONS,
            why: "the host's API servers and scheduler, which all tenants share, compile and evaluate each",
        },
    ]
}

/// What the expressions of a claim or template cost the host when it is made, as a number of requests: its API servers compile each. The last of `limits`
/// counts them.
pub fn compilation_requests(limits: &[SizeLimit], object: &Value) -> u64 {
    let expressions = limits.last().map_or(0, |limit| limit.measure.count(object));
    expressions.div_ceil(EXPRESSIONS_OF_A_REQUEST) as u64
}
