//! Restores the webhook configuration in the tenant.

use crate::{
    engine::api::{Api, CallError},
    store::{Object, Parts},
};
use berth_sync_rules::{
    admission::configuration::NAME,
    model::{
        json,
        resource::{self, Resource},
    },
};
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{
    api::Patch,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde_json::{Value, json};
use std::time::Duration;

/// Pause after the configuration was restored, and after that failed: a controller that keeps changing it must not
/// cause a flood of writes.
const PAUSE: Duration = Duration::from_millis(500);
/// The resource of the configuration.
const RESOURCE: Resource = resource::MUTATING_WEBHOOK_CONFIGURATION;

/// Restores the configuration whenever it is edited or deleted, for ever.
pub(crate) async fn keep(tenant: Api, wanted: &MutatingWebhookConfiguration) {
    let Ok(wanted) = serde_json::to_value(wanted) else {
        return;
    };
    let api: kube::Api<Object<false>> = kube::Api::all_with(tenant.client(), &RESOURCE);
    let one = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let events = watcher::watcher(api, one).default_backoff();
    pin_mut!(events);
    let mut listed = false;
    while let Some(event) = events.next().await {
        let live = match event {
            Ok(Event::Init) => {
                listed = false;
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed = true;
                Some(object.parse(Parts::All))
            }
            Ok(Event::Apply(object)) => Some(object.parse(Parts::All)),
            Ok(Event::InitDone) if listed => continue,
            Ok(Event::Delete(_) | Event::InitDone) => None,
            Err(error) => {
                tracing::debug!(%error, "watch of the webhook configuration interrupted");
                continue;
            }
        };
        while let Err(error) = put_back(&tenant, &wanted, live.as_ref()).await {
            tracing::warn!(%error, "cannot put the webhook configuration back");
            // It has changed since: the watch will report that.
            if matches!(error, CallError::Conflict(_) | CallError::NotFound) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn put_back(tenant: &Api, wanted: &Value, live: Option<&Value>) -> Result<(), CallError> {
    match live {
        Some(live) if live.get("webhooks") == wanted.get("webhooks") => return Ok(()),
        // An apply would leave what others have added, for example a condition that never holds.
        Some(live) => {
            let uid = json::text(live, &["metadata", "uid"]);
            let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "webhooks": wanted["webhooks"]}));
            tenant.patch(RESOURCE, "", NAME, "", &patch).await?;
        }
        None => {
            let mut object = wanted.clone();
            object["apiVersion"] = RESOURCE.api_version().into();
            object["kind"] = RESOURCE.kind.into();
            tenant.apply(RESOURCE, "", NAME, &object).await?;
        }
    }
    tracing::info!("put the webhook configuration for Services back");
    tokio::time::sleep(PAUSE).await;
    Ok(())
}
