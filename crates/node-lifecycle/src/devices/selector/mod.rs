//! Which devices a selector of a class or claim selects: the part of CEL in which device selectors are written.
//!
//! It is small and uses no CEL library, because tenants write these expressions and must not be able to crash control: nesting
//! is bounded, and nothing panics. If an expression is not supported, the result is "not known", never wrong.
//!
//! | understood | |
//! |---|---|
//! | of a device | `driver`, `attributes["domain"].name`, `capacity["domain"].name`, `allowMultipleAllocations` |
//! | operators | `&&`, <code>&#124;&#124;</code>, `!`, `==`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `? :`, parentheses |
//! | functions | `has`, `quantity`, `semver`; `compareTo`, `isGreaterThan`, `isLessThan`, `startsWith`, `endsWith`, `contains`, `lowerAscii`, `upperAscii`, `major`, `minor`, `patch`, `orValue`, `hasValue` |
//! | optional values | `.?name`, `[?"domain"]` |

mod eval;
mod parse;

use super::slice_spec::Device;
use eval::{Value, evaluate};
use parse::Expression;

/// A parsed selector.
#[derive(Clone, Debug, PartialEq)]
pub struct Selector(Option<Expression>);

impl Selector {
    /// Parses an expression.
    pub fn new(expression: &str) -> Self {
        Self(parse::parse(expression))
    }

    /// Whether a device of a `ResourceSlice` is selected; None if that is not known. As for the scheduler, an attribute that the
    /// device does not have is an error, and no match.
    pub(super) fn matches(&self, driver: &str, device: &Device) -> Option<bool> {
        match evaluate(self.0.as_ref()?, &eval::Device { driver, device }) {
            Ok(Value::Bool(matches)) => Some(matches),
            Ok(_) | Err(eval::EvalError::Absent) => Some(false),
            Err(eval::EvalError::Unknown) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(expression: &str) -> Option<bool> {
        let device: Device = serde_json::from_value(json!({
            "name": "gpu-0",
            "attributes": {
                "productName": {"string": "NVIDIA H100 80GB HBM3"}, "type": {"string": "gpu"}, "index": {"int": 3},
                "driverVersion": {"version": "580.95.5"}, "healthy": {"bool": true},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }))
        .unwrap();
        Selector::new(expression).matches("gpu.nvidia.com", &device)
    }

    #[test]
    fn selectors_of_drivers_classes_are_understood() {
        for (expression, expected) in [
            ("device.driver == 'gpu.nvidia.com'", true),
            ("device.driver == \"other\"", false),
            (
                "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
                true,
            ),
            ("device.attributes['gpu.nvidia.com'].type == 'mig'", false),
            ("device.attributes[\"gpu.nvidia.com\"][\"type\"] == 'gpu'", true),
            (
                "device.attributes['resource.kubernetes.io'].pcieRoot.startsWith('pci')",
                true,
            ),
            (
                "device.attributes['gpu.nvidia.com'].productName.lowerAscii().contains('h100')",
                true,
            ),
            ("device.attributes['gpu.nvidia.com'].index in [1, 3]", true),
            ("device.attributes['gpu.nvidia.com'].index >= 4", false),
            ("device.attributes['gpu.nvidia.com'].healthy", true),
            ("!device.attributes['gpu.nvidia.com'].healthy", false),
            ("device.attributes['gpu.nvidia.com'].healthy ? true : false", true),
        ] {
            assert_eq!(matches(expression), Some(expected), "{expression}");
        }
    }

    #[test]
    fn capacity_and_versions_are_compared() {
        for (expression, expected) in [
            (
                "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0",
                true,
            ),
            (
                "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('1Ti'))",
                false,
            ),
            ("quantity('80Gi') == device.capacity['gpu.nvidia.com'].memory", true),
            (
                "device.attributes['gpu.nvidia.com'].driverVersion.isLessThan(semver('580.100.0'))",
                true,
            ),
            (
                "device.attributes['gpu.nvidia.com'].driverVersion.compareTo(semver('580.95.5')) == 0",
                true,
            ),
            ("device.attributes['gpu.nvidia.com'].driverVersion.major() >= 580", true),
        ] {
            assert_eq!(matches(expression), Some(expected), "{expression}");
        }
    }

    #[test]
    fn a_missing_attribute_is_no_match() {
        for (expression, expected) in [
            ("device.attributes['gpu.nvidia.com'].arch == 'Hopper'", false),
            ("device.attributes['example.com'].arch == 'Hopper'", false),
            ("true || device.attributes['example.com'].arch == 'Hopper'", true),
            ("device.attributes['example.com'].arch == 'Hopper' || true", true),
            ("has(device.attributes['gpu.nvidia.com'].arch)", false),
            ("'type' in device.attributes['gpu.nvidia.com']", true),
            ("'example.com' in device.attributes", false),
            (
                "device.attributes['gpu.nvidia.com'].?arch.orValue('none') == 'none'",
                true,
            ),
            ("device.attributes[?'example.com'].?arch.hasValue()", false),
            ("device.attributes['gpu.nvidia.com'].type", false),
        ] {
            assert_eq!(matches(expression), Some(expected), "{expression}");
        }
    }

    #[test]
    fn an_expression_that_is_not_understood_is_not_known() {
        for expression in [
            "",
            "device.driver ==",
            "device.driver == 'a' extra",
            "1 + 1 == 2",
            "cel.bind(a, 1, a == 1)",
            "device.attributes['gpu.nvidia.com'].productName.matches('H1.*')",
            "['a'].exists(x, x == 'a')",
            "'unclosed",
            "device.node == 'n'",
        ] {
            assert_eq!(matches(expression), None, "{expression}");
        }
        // The result is known if the rest decides.
        assert_eq!(matches("device.driver == 'other' && future()"), Some(false));
        assert_eq!(matches("future() || device.driver == 'gpu.nvidia.com'"), Some(true));
    }

    #[test]
    fn nesting_is_bounded() {
        assert_eq!(
            matches(&format!("{}true{}", "(".repeat(20), ")".repeat(20))),
            Some(true)
        );
        for deep in ["(", "!", "[", "f(", "true ? true : "] {
            assert_eq!(matches(&deep.repeat(100_000)), None, "{deep}");
        }
        assert_eq!(matches(&format!("true{}", " && true".repeat(1_000))), Some(true));
        assert_eq!(matches(&format!("device{}", ".a".repeat(50_000))), None);
    }
}
