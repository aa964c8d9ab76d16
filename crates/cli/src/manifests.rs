//! What Berth needs on the host cluster before control starts.

use futures::{TryStreamExt as _, stream};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use crate::error::Error;

const MANAGER: &str = "berth-cli";
/// The user that control authenticates as.
pub(crate) const CONTROL_USER: &str = "berth-control";

/// Applies the custom resource definitions and waits until they are served.
pub(crate) async fn apply_definitions(client: &Client) -> Result<(), Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    stream::iter(berth_api::crd::all().into_iter().map(Ok))
        .try_for_each_concurrent(4, |definition| {
            let api = api.clone();
            async move {
                let name = definition.name_any();
                let params = PatchParams::apply(MANAGER).force();
                let failed = || Error::api(format!("apply the definition {name}"));
                api.patch(&name, &params, &Patch::Apply(&definition)).await.map_err(failed())?;
                let deadline = Instant::now() + Duration::from_secs(30);
                while !api.get(&name).await.is_ok_and(|definition| is_established(&definition)) {
                    if Instant::now() > deadline {
                        api.get(&name).await.map_err(failed())?;
                        return Err(Error::NotUp { message: format!("{name} is not served"), log: "kube-apiserver.log".into() });
                    }
                    sleep(Duration::from_millis(20)).await;
                }
                Ok(())
            }
        })
        .await
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Gives control its rights on the host cluster.
pub(crate) async fn apply_control_access(client: &Client) -> Result<(), Error> {
    let api: Api<ClusterRoleBinding> = Api::all(client.clone());
    let params = PatchParams::apply(MANAGER).force();
    let failed = Error::api("bind control's role");
    api.patch(CONTROL_USER, &params, &Patch::Apply(control_access())).await.map_err(failed)?;
    Ok(())
}

/// The binding that makes control what it is.
fn control_access() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": CONTROL_USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": CONTROL_USER}],
    })
}
