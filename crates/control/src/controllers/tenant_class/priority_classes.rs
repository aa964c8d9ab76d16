//! The host's PriorityClasses of a class: one for each step of its band and each preemption policy.
//!
//! They carry the class's name in a label, by which they are found again. A PriorityClass's value cannot change: a band
//! that changes replaces them. Pods keep the priority they were admitted with.

use super::{TenantClassContext, TenantClassError};
use crate::{
    apply::{delete_same, is_status},
    error::{ReconcileError, api},
};
use berth_api::{
    labels,
    sync_policy::{PRIORITY_STEPS, PriorityBand},
};
use k8s_openapi::{api::scheduling::v1::PriorityClass, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, ResourceExt, api::PostParams};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The PriorityClasses of a band.
fn build(class: &str, band: PriorityBand) -> Vec<PriorityClass> {
    let all = (0..PRIORITY_STEPS).flat_map(|step| [(step, true), (step, false)]);
    all.map(|(step, preempts)| PriorityClass {
        metadata: ObjectMeta {
            name: Some(PriorityBand::class_name(class, step, preempts)),
            labels: Some(BTreeMap::from([(labels::CLASS.into(), class.into())])),
            ..ObjectMeta::default()
        },
        value: Some(band.value(step)),
        preemption_policy: Some(if preempts { "PreemptLowerPriority" } else { "Never" }.into()),
        description: Some(format!(
            "For pods of tenants of the TenantClass {class}. Made by Berth."
        )),
        global_default: None,
    })
    .collect()
}

/// What has to be deleted, and what has to be created after that.
fn diff(existing: &[Arc<PriorityClass>], wanted: Vec<PriorityClass>) -> (Vec<Arc<PriorityClass>>, Vec<PriorityClass>) {
    let same = |a: &PriorityClass, b: &PriorityClass| {
        a.name_any() == b.name_any()
            && a.value.unwrap_or_default() == b.value.unwrap_or_default()
            && a.preemption_policy == b.preemption_policy
            && !a.global_default.unwrap_or_default()
    };
    let wrong = existing
        .iter()
        .filter(|have| !wanted.iter().any(|want| same(have, want)))
        .cloned()
        .collect();
    let missing = wanted
        .into_iter()
        .filter(|want| !existing.iter().any(|have| same(have, want)))
        .collect();
    (wrong, missing)
}

/// Makes the host's PriorityClasses of a class match `band`; without a band there are none. Returns the names that other
/// objects have.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn apply(
    context: &TenantClassContext,
    class: &str,
    band: Option<PriorityBand>,
) -> Result<BTreeSet<String>, TenantClassError> {
    let mut existing = context.stores.priority_classes.state();
    existing.retain(|have| have.labels().get(labels::CLASS).map(String::as_str) == Some(class));
    let (wrong, missing) = diff(&existing, band.map(|band| build(class, band)).unwrap_or_default());
    let classes: Api<PriorityClass> = Api::all(context.client.clone());
    let mut taken = BTreeSet::new();
    let applied = async {
        for have in wrong {
            delete(&classes, &have).await?;
        }
        for want in missing {
            if !create(&classes, class, &want).await? {
                taken.insert(want.name_any());
            }
        }
        Ok(())
    };
    applied.await.map_err(TenantClassError::PriorityClasses)?;
    Ok(taken)
}

async fn delete(classes: &Api<PriorityClass>, have: &PriorityClass) -> Result<(), ReconcileError> {
    // If another one has its name by now, the watch brings it.
    let deleted = delete_same(classes, &have.metadata, None).await;
    deleted.map(drop).map_err(api("delete a PriorityClass"))
}

/// `false`: an object that is not of this class has the name.
async fn create(classes: &Api<PriorityClass>, class: &str, want: &PriorityClass) -> Result<bool, ReconcileError> {
    match classes.create(&PostParams::default(), want).await {
        Ok(_) => Ok(true),
        Err(error) if is_status(&error, 409) => {
            let existing = classes.get(&want.name_any()).await;
            let existing = existing.map_err(api("read a PriorityClass"))?;
            Ok(existing.labels().get(labels::CLASS).map(String::as_str) == Some(class))
        }
        Err(error) => Err(api("create a PriorityClass")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn band(lowest: i32, highest: i32) -> PriorityBand {
        PriorityBand { lowest, highest }
    }

    fn names(classes: impl IntoIterator<Item = impl ResourceExt>) -> Vec<String> {
        classes.into_iter().map(|class| class.name_any()).collect()
    }

    #[test]
    fn each_step_and_policy_has_a_priority_class() {
        let all = build("gold", band(0, 1100));
        assert_eq!(all.len(), 24);
        assert_eq!(all[0].name_any(), "berth-gold-0");
        assert_eq!(
            (all[23].name_any().as_str(), all[23].value),
            ("berth-gold-11-never", Some(1100))
        );
        assert_eq!(all[23].preemption_policy.as_deref(), Some("Never"));
        let unique: BTreeSet<String> = names(all).into_iter().collect();
        assert_eq!(unique.len(), 24);
    }

    #[test]
    fn only_what_differs_is_replaced() {
        let have: Vec<Arc<PriorityClass>> = build("gold", band(0, 1100)).into_iter().map(Arc::new).collect();
        let (wrong, missing) = diff(&have, build("gold", band(0, 1100)));
        assert!(wrong.is_empty() && missing.is_empty());
        // The lowest step keeps its value.
        let (wrong, missing) = diff(&have, build("gold", band(0, 2200)));
        assert_eq!((wrong.len(), missing.len()), (22, 22));
        let (wrong, missing) = diff(&have[..2], Vec::new());
        assert_eq!(
            (names(wrong.iter().map(|c| c.as_ref().clone())).len(), missing.len()),
            (2, 0)
        );
    }
}
