//! TenantClusters as commands name and read them.

use berth_api::{Phase, TenantCluster};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use serde::Serialize;

use crate::error::{Error, failed, is_forbidden};
use crate::host::{Host, find_object};
use crate::output::print_note;
use crate::user_config::document;

/// Key of a kubeconfig in its Secret.
const KUBECONFIG_KEY: &str = "kubeconfig";

/// Namespace and name of a TenantCluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TenantName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl std::fmt::Display for TenantName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

impl TenantName {
    /// Reads `NAME`, a tenant of `namespace`, or `NAMESPACE/NAME`.
    pub(crate) fn parse(text: &str, namespace: &str) -> Result<Self, Error> {
        let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(Error::Usage(format!(
                "{text:?} is not NAME or NAMESPACE/NAME of a TenantCluster"
            )));
        }
        Ok(Self {
            namespace: namespace.into(),
            name: name.into(),
        })
    }

    /// The name of an object.
    pub(crate) fn of(tenant: &TenantCluster) -> Self {
        Self {
            namespace: tenant.namespace().unwrap_or_default(),
            name: tenant.name_any(),
        }
    }

    /// The TenantClusters of the namespace.
    pub(crate) fn api(&self, client: &Client) -> Api<TenantCluster> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    /// Reads the TenantCluster.
    ///
    /// # Errors
    /// It does not exist, or the host does not answer.
    pub(crate) async fn get(&self, client: &Client) -> Result<TenantCluster, Error> {
        let found = find_object(&self.api(client), &self.name).await;
        found.map_err(failed("get the tenant"))?.ok_or_else(|| self.not_found())
    }

    /// The error for a tenant that does not exist.
    pub(crate) fn not_found(&self) -> Error {
        Error::NotFound(format!(
            "there is no TenantCluster {self}; `berth list -A` lists all that you may see"
        ))
    }
}

/// Resource and name, as `-o name` prints them.
pub(crate) fn resource_name(name: &str) -> String {
    format!("tenantcluster.berth.dev/{name}")
}

/// What names a tenant in results that programs read. Fields are only ever added.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TenantHead {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// None before control has seen it.
    pub(crate) phase: Option<String>,
}

impl TenantHead {
    /// That of an object.
    pub(crate) fn of(tenant: &TenantCluster) -> Self {
        let TenantName { namespace, name } = TenantName::of(tenant);
        let phase = tenant.status.as_ref().and_then(|status| status.phase);
        Self {
            namespace,
            name,
            phase: phase.map(|phase| format!("{phase:?}")),
        }
    }
}

/// Finds the tenant that a command names, in the namespace of the command unless it names one.
pub(crate) async fn find(host: &Host, text: &str) -> Result<(TenantName, TenantCluster), Error> {
    let name = TenantName::parse(text, &host.namespace)?;
    let tenant = name.get(&host.client).await?;
    Ok((name, tenant))
}

/// The tenants that a command about many of them shows.
#[derive(Debug)]
pub(crate) struct VisibleTenants {
    pub(crate) tenants: Vec<TenantCluster>,
    /// The one namespace that they are of; none if they are of all namespaces.
    pub(crate) namespace: Option<String>,
}

/// Lists the tenants of the namespace that `--namespace` gives, or else of all. Who may not list all, as teams usually may not, gets those of
/// the namespace of the context, and a line on stderr says so.
///
/// # Errors
/// The user may not list these either, or the host does not answer.
pub(crate) async fn list_visible(host: &Host, given: Option<&str>) -> Result<VisibleTenants, Error> {
    let parameters = ListParams::default();
    if given.is_none() {
        match Api::<TenantCluster>::all(host.client.clone()).list(&parameters).await {
            Ok(list) => {
                return Ok(VisibleTenants {
                    tenants: list.items,
                    namespace: None,
                });
            }
            Err(error) if is_forbidden(&error) => {
                print_note(format_args!(
                    "you may not list the tenants of all namespaces: these are of {}",
                    host.namespace
                ));
            }
            Err(error) => return Err(failed("list the tenants")(error)),
        }
    }
    let namespace = given.unwrap_or(&host.namespace);
    let own = Api::<TenantCluster>::namespaced(host.client.clone(), namespace);
    let list = own.list(&parameters).await.map_err(failed("list the tenants"))?;
    Ok(VisibleTenants {
        tenants: list.items,
        namespace: Some(namespace.to_owned()),
    })
}

/// The kubeconfig of a tenant's administrators, out of the Secret that control wrote. Secret.
///
/// # Errors
/// There is none yet, or the user may not read it, or it has what control does not write.
pub(crate) async fn read_kubeconfig(host: &Host, name: &TenantName, tenant: &TenantCluster) -> Result<String, Error> {
    let status = tenant.status.as_ref();
    let reference = status.and_then(|status| status.kubeconfig_secret_ref.as_ref());
    let reference = reference.ok_or_else(|| {
        Error::Failed(format!(
            "{name} has no kubeconfig yet: it is {}; `berth get {} -n {}` says what it waits for",
            phase(tenant),
            name.name,
            name.namespace,
        ))
    })?;
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), &name.namespace);
    let secret = secrets.get(&reference.name).await.map_err(|error| match error {
        kube::Error::Api(answer) if answer.code == 403 => {
            Error::Failed(describe_forbidden(name, tenant, &reference.name, &answer.message))
        }
        error => failed("read the kubeconfig")(error),
    })?;
    let text = secret.data.and_then(|mut data| data.remove(KUBECONFIG_KEY));
    let text = text.and_then(|text| String::from_utf8(text.0).ok());
    let text = text.ok_or_else(|| {
        Error::Failed(format!(
            "the Secret {}/{} has no key {KUBECONFIG_KEY}; control writes it again within minutes",
            name.namespace, reference.name
        ))
    })?;
    let checked = document::parse(&text).and_then(|document| document::check_tenant(&document));
    checked.map_err(|error| {
        Error::Failed(format!(
            "the kubeconfig in the Secret {}/{} cannot be used: {error}",
            name.namespace, reference.name
        ))
    })?;
    Ok(text)
}

/// What somebody can do who may not read the Secret with the kubeconfig of the administrators.
fn describe_forbidden(name: &TenantName, tenant: &TenantCluster, secret: &str, answer: &str) -> String {
    let published = tenant.status.as_ref().and_then(|status| status.kubeconfig.as_ref());
    let advice = match published {
        Some(published) => format!(
            "sign in at {} instead: `berth kubeconfig {name}` and `berth connect {name}` need no Secret without --admin, and then `berth \
             token service-account` makes a kubeconfig for a machine",
            published.sign_in.issuer
        ),
        None => "ask the platform for this permission, or the owner of the tenant to name an issuer in \
                 spec.authentication.kubeconfig: then people sign in there, and need no Secret"
            .into(),
    };
    let namespace = &name.namespace;
    format!(
        "the kubeconfig of the administrators is in the Secret {namespace}/{secret}, which you may not read ({answer}); {advice}"
    )
}

/// Whether nothing of a tenant runs, or not yet again.
pub(crate) fn is_asleep(tenant: &TenantCluster) -> bool {
    let phase = tenant.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(Phase::Sleeping | Phase::Waking))
}

/// The phase of a tenant, as its status has it.
pub(crate) fn phase(tenant: &TenantCluster) -> String {
    let phase = tenant.status.as_ref().and_then(|status| status.phase);
    phase.map_or_else(|| "Pending".into(), |phase| format!("{phase:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_may_not_read_the_secret_learns_how_to_sign_in_or_whom_to_ask() {
        let name = TenantName::parse("team/vision", "").unwrap();
        let text = |status: serde_json::Value| {
            let tenant: TenantCluster = serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "vision"}, "spec": {}, "status": status,
            }))
            .unwrap();
            describe_forbidden(&name, &tenant, "vision-kubeconfig", "no")
        };
        let asks = text(json!({}));
        assert!(
            asks.starts_with("the kubeconfig of the administrators is in the Secret team/vision-kubeconfig, which you may not read (no); ask")
                && asks.contains("spec.authentication.kubeconfig"),
            "{asks}"
        );
        let signs_in = text(json!({"kubeconfig": {
            "certificateAuthority": "pem", "issuer": "https://id.example.com", "clientID": "berth",
        }}));
        assert!(
            signs_in.contains("https://id.example.com") && signs_in.contains("`berth kubeconfig team/vision`"),
            "{signs_in}"
        );
    }

    #[test]
    fn a_tenant_is_named_with_or_without_its_namespace() {
        let name = |text: &str| TenantName::parse(text, "team").map(|name| name.to_string());
        assert_eq!(name("vision").unwrap(), "team/vision");
        assert_eq!(name("other/vision").unwrap(), "other/vision");
        for wrong in ["", "/", "a/", "/a", "a/b/c"] {
            assert!(matches!(name(wrong), Err(Error::Usage(_))), "{wrong}");
        }
    }
}
