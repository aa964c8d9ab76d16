//! The pauses of the tenants of a quota, which they share. Who shares them, and what they deny, is in [`crate::unused`].

use crate::Seconds;
use std::collections::BTreeSet;

/// The pauses of the tenants of one quota. Each node that might be reclaimed is a reason to look at them.
#[derive(Debug, Default)]
pub(crate) struct SharedPauses(BTreeSet<(Seconds, usize)>);

impl SharedPauses {
    /// Replaces when the pause of a tenant ends.
    pub fn replace(&mut self, tenant: usize, before: Option<Seconds>, after: Option<Seconds>) {
        if let Some(before) = before {
            self.0.remove(&(before, tenant));
        }
        self.0.extend(after.map(|after| (after, tenant)));
    }

    /// When the last pause of the other tenants ends.
    pub fn find_last_of_others(&self, tenant: usize) -> Option<Seconds> {
        let mut latest_first = self.0.iter().rev();
        let last = latest_first.find(|(_, other)| *other != tenant)?;
        Some(last.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pause_of_another_tenant_counts() {
        let mut pauses = SharedPauses::default();
        let last = |pauses: &SharedPauses| [1, 2, 3].map(|tenant| pauses.find_last_of_others(tenant));
        assert_eq!(last(&pauses), [None, None, None]);
        pauses.replace(1, None, Some(900));
        pauses.replace(2, None, Some(600));
        assert_eq!(last(&pauses), [Some(600), Some(900), Some(900)]);
        pauses.replace(2, Some(600), Some(1200));
        assert_eq!(last(&pauses), [Some(1200), Some(900), Some(1200)]);
        pauses.replace(1, Some(900), None);
        assert_eq!(last(&pauses), [Some(1200), None, Some(1200)]);
    }
}
