//! The `TenantClass` controller: creates what a class needs on the host, and reports whether the class can be used and how
//! many tenants use it.
//!
//! The rules of a class reach its tenants through their own reconciles, which a change of the class triggers.

mod context;
mod error;
mod hostnames;
mod images;
mod kinds;
mod priority_classes;
mod selection;
mod status;
#[cfg(test)]
mod tests;
mod validate;

pub use context::TenantClassContext;
pub use error::TenantClassError;
pub use kinds::{KnownKinds, SyncerRules, Usable};
pub use selection::class_of;
pub use validate::validate;

use kube::runtime::reflector::ObjectRef;
use std::time::Duration;

/// Pause before checking again whether the host serves what a class lists, and whether tenants still have the rules of a class that is gone.
const RESYNC: Duration = Duration::from_secs(60);
/// The same for a class that cannot be used.
const RECHECK: Duration = Duration::from_secs(10);

/// Creates and deletes what a class needs on the host, and writes the class's status.
///
/// # Errors
/// A step failed; the queue tries again later.
pub async fn reconcile(context: &TenantClassContext, name: &str) -> Result<Option<Duration>, TenantClassError> {
    let Some(class) = context.stores.classes.get(&ObjectRef::new(name)) else {
        // Tenants keep the rules that they had, and their pods keep naming these PriorityClasses. A tenant that gets another class does not wake the one
        // that it had: by then nothing of the tenant names it.
        if selection::is_remembered(&context.stores.tenants.state(), name) {
            return Ok(Some(RESYNC));
        }
        priority_classes::apply(context, name, None).await?;
        return Ok(None);
    };
    let ready = if let Err(invalid) = validate(&class.spec) {
        status::invalid_rules(invalid)
    } else {
        let taken = priority_classes::apply(context, name, class.spec.sync.pods.priority).await?;
        status::usability(context, &class.spec, &taken).await?
    };
    let pause = if ready.is_true() { RESYNC } else { RECHECK };
    status::write(context, &class, ready).await?;
    Ok(Some(pause))
}
