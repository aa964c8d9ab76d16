//! The quotas of a level that are nearest to full, for the columns of kubectl.

use crate::{TreeQuotaStatus, TreeResource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The quotas of an Organization or a Project that are nearest to full, for people. Programs read `quotas`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaSummary {
    /// `reserved/nominal` GPUs, of the pool or the product of which the largest part is reserved. Absent if no quota limits GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<String>,
    /// The quota of which the largest part is reserved, with its resource, for example `pods 950/1000`.
    pub fullest: String,
}

impl QuotaSummary {
    /// That of some quotas; none if there are none. Of several that are as full the first is named.
    pub fn of(quotas: &[TreeQuotaStatus]) -> Option<Self> {
        let fullest = find_fullest(quotas.iter())?;
        let of_gpus = quotas.iter().filter(|quota| quota.resource == TreeResource::Gpus);
        Some(Self {
            gpus: find_fullest(of_gpus).map(TreeQuotaStatus::describe_reserved),
            fullest: format!("{} {}", fullest.name(), fullest.describe_reserved()),
        })
    }
}

fn find_fullest<'a>(quotas: impl Iterator<Item = &'a TreeQuotaStatus>) -> Option<&'a TreeQuotaStatus> {
    quotas.reduce(|fullest, quota| if quota.is_fuller_than(fullest) { quota } else { fullest })
}

impl TreeQuotaStatus {
    /// What it limits, for people: the resource and, of GPUs, the pool or the product.
    pub fn name(&self) -> String {
        match self.pool_name.as_ref().or(self.gpu_product.as_ref()) {
            Some(of) => format!("{} of {of}", self.resource.as_str()),
            None => self.resource.as_str().to_owned(),
        }
    }

    /// `reserved/nominal`.
    fn describe_reserved(&self) -> String {
        let amount = |amount| self.resource.format_rounded(amount);
        format!("{}/{}", amount(self.reserved), amount(self.nominal_quota))
    }

    /// Whether a larger part of it is reserved. Without a nominal quota, all is borrowed: how near that is to full depends on others, and any other
    /// quota comes first.
    fn is_fuller_than(&self, other: &Self) -> bool {
        match (self.nominal_quota, other.nominal_quota) {
            (0, _) => false,
            (_, 0) => true,
            (nominal, of_other) => {
                u128::from(self.reserved) * u128::from(of_other) > u128::from(other.reserved) * u128::from(nominal)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(resource: &str, pool: Option<&str>, reserved: u64, nominal: u64) -> TreeQuotaStatus {
        TreeQuotaStatus {
            resource: resource.to_owned().into(),
            pool_name: pool.map(Into::into),
            gpu_product: None,
            nominal_quota: nominal,
            reserved,
            used: None,
            borrowed: 0,
        }
    }

    fn summary(quotas: &[TreeQuotaStatus]) -> (Option<String>, String) {
        let QuotaSummary { gpus, fullest } = QuotaSummary::of(quotas).unwrap();
        (gpus, fullest)
    }

    #[test]
    fn gpus_and_the_fullest_quota_are_summarized() {
        let quotas = [
            quota("gpus", Some("l40s"), 4, 16),
            quota("gpus", Some("h100"), 24, 32),
            quota("pods", None, 950, 1000),
            quota("datastore.bytes", None, 1 << 30, 2 << 30),
        ];
        let expected = (Some("24/32".to_owned()), "pods 950/1000".to_owned());
        assert_eq!(summary(&quotas), expected);
        let bytes = quota("datastore.bytes", None, 3 << 29, 2 << 30);
        assert_eq!(summary(&[bytes]), (None, "datastore.bytes 1536Mi/2Gi".to_owned()));
        assert_eq!(QuotaSummary::of(&[]), None);
    }

    #[test]
    fn a_pool_or_a_product_belongs_to_the_name() {
        let product = TreeQuotaStatus {
            gpu_product: Some("H100".into()),
            ..quota("gpus", None, 48, 64)
        };
        let quotas = [product, quota("gpus", None, 32, 64)];
        assert_eq!(
            summary(&quotas),
            (Some("48/64".to_owned()), "gpus of H100 48/64".to_owned())
        );
        assert_eq!(quotas[1].name(), "gpus");
    }

    #[test]
    fn a_quota_that_borrows_everything_comes_last() {
        let pods = |reserved, nominal| quota("pods", None, reserved, nominal);
        let fullest = |quotas: &[TreeQuotaStatus]| summary(quotas).1;
        assert_eq!(fullest(&[pods(7, 0), pods(1, 1_000_000)]), "pods 1/1000000");
        assert_eq!(fullest(&[pods(7, 0), pods(0, 10)]), "pods 0/10");
        assert_eq!(fullest(&[pods(0, 10), pods(7, 0)]), "pods 0/10");
        assert_eq!(fullest(&[pods(7, 0)]), "pods 7/0");
        assert_eq!(fullest(&[pods(1, 2), pods(3, 2)]), "pods 3/2");
        assert_eq!(
            fullest(&[pods(1, 2), pods(2, 4)]),
            "pods 1/2",
            "the first of those that are as full"
        );
        assert_eq!(
            fullest(&[pods(u64::MAX, 2), pods(u64::MAX, 1)]),
            format!("pods {}/1", u64::MAX)
        );
    }
}
