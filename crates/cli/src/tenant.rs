//! TenantClusters as commands name and read them.

use berth_api::{Phase, TenantCluster};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Error, describe, failed, is_forbidden};
use crate::host::{Host, HostArguments, find_object};
use crate::output::{NameOnly, print_line, print_note};
use crate::suggest;
use crate::user_config::document;

/// Key of a kubeconfig in its Secret.
const KUBECONFIG_KEY: &str = "kubeconfig";

/// Namespace and name of a TenantCluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TenantName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The name in `RESOURCE.GROUP/NAME`, as `--output name` prints an object of the kind; any other text as it is. No namespace has a dot in its name.
pub(crate) fn without_resource<K: Resource<DynamicType = ()>>(text: &str) -> &str {
    let Some((resource, name)) = text.split_once('/') else {
        return text;
    };
    let is_of_kind = resource.split_once('.').is_some_and(|(resource, group)| {
        group == K::group(&()) && (resource.eq_ignore_ascii_case(&K::kind(&())) || resource == K::plural(&()))
    });
    if is_of_kind { name } else { text }
}

impl std::fmt::Display for TenantName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

impl TenantName {
    /// Reads `NAME`, a tenant of `namespace`, or `NAMESPACE/NAME`, or what `--output name` prints.
    pub(crate) fn parse(text: &str, namespace: &str) -> Result<Self, Error> {
        let name = without_resource::<TenantCluster>(text);
        let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
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

    /// Reads the same in a command about a host, in the namespace of the command.
    ///
    /// # Errors
    /// It is no name, or it names another namespace than `--namespace`.
    pub(crate) fn parse_for(text: &str, host: &Host) -> Result<Self, Error> {
        Self::parse_given(text, &host.namespace, host.is_namespace_given)
    }

    /// The same where no host is needed. `is_given` says that `namespace` is that of `--namespace`: a name with another one is refused, because one of
    /// them is not what the user means.
    pub(crate) fn parse_given(text: &str, namespace: &str, is_given: bool) -> Result<Self, Error> {
        let name = Self::parse(text, namespace)?;
        if is_given && name.namespace != namespace {
            return Err(Error::Usage(format!(
                "{text} is in the namespace {}, and --namespace is {namespace}: leave out one of them",
                name.namespace
            )));
        }
        Ok(name)
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
        found
            .map_err(failed("get the tenant"))?
            .ok_or_else(|| self.not_found(&[]))
    }

    /// The error for a tenant that the user has named and that does not exist, with those that may be meant.
    pub(crate) async fn find_similar(&self, client: &Client) -> Error {
        self.not_found(&list_names(client, &self.namespace).await)
    }

    /// Reads the TenantCluster that the user has named.
    ///
    /// # Errors
    /// It does not exist, and the text names those that may be meant; or the host does not answer.
    pub(crate) async fn find(&self, client: &Client) -> Result<TenantCluster, Error> {
        let found = find_object(&self.api(client), &self.name).await;
        match found.map_err(failed("get the tenant"))? {
            Some(tenant) => Ok(tenant),
            None => Err(self.find_similar(client).await),
        }
    }

    /// Asks control for something: writes the time of the request into an annotation of the TenantCluster.
    ///
    /// # Errors
    /// The host refuses or does not answer.
    pub(crate) async fn request(&self, client: &Client, annotation: &str, at: Timestamp) -> Result<(), Error> {
        let patch = Patch::Merge(request_patch(annotation, at));
        let patched = self
            .api(client)
            .patch(&self.name, &PatchParams::default(), &patch)
            .await;
        patched.map(drop).map_err(failed("annotate the tenant"))
    }

    /// Asks whether one of `others` is meant: those of the same name in other namespaces, and those with a similar name; none if none may be.
    pub(crate) fn ask<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Option<String> {
        let near = others.into_iter().filter_map(|other| {
            let distance = suggest::distance(&self.name, &other.name)?;
            let is_elsewhere = other.namespace != self.namespace;
            Some(((distance, is_elsewhere), other.to_string()))
        });
        suggest::ask_for(near.collect())
    }

    /// The error for a tenant that does not exist, among these that do.
    pub(crate) fn not_found(&self, others: &[Self]) -> Error {
        let question = self.ask(others);
        let advice = question.unwrap_or_else(|| "`berth list -A` lists all that you may see".into());
        Error::NotFound(format!("there is no TenantCluster {self}; {advice}"))
    }
}

/// The patch that makes a request.
fn request_patch(annotation: &str, at: Timestamp) -> Value {
    json!({"metadata": {"annotations": {annotation: at.to_string()}}})
}

/// The names of all tenants, or of those in the namespace if the user may not list others; none if these may not be listed either.
pub(crate) async fn list_names(client: &Client, namespace: &str) -> Vec<TenantName> {
    let parameters = ListParams::default();
    let all = Api::<TenantCluster>::all(client.clone());
    let mut list = all.list_metadata(&parameters).await;
    if list.is_err() {
        let own = Api::<TenantCluster>::namespaced(client.clone(), namespace);
        list = own.list_metadata(&parameters).await;
    }
    let tenants = list.map(|list| list.items).unwrap_or_default().into_iter();
    let names = tenants.map(|tenant| TenantName {
        namespace: tenant.namespace().unwrap_or_default(),
        name: tenant.name_any(),
    });
    names.collect()
}

/// Resource and name, as `-o name` prints them.
pub(crate) fn resource_name(name: &str) -> String {
    format!("tenantcluster.berth.dev/{name}")
}

/// Prints what a command did to a tenant: its resource and name if only these are asked for, or else a sentence that begins with the name and goes on
/// with `what`.
pub(crate) fn print_result(name: &TenantName, output: Option<NameOnly>, what: &str) -> Result<(), Error> {
    match output {
        Some(NameOnly::Name) => print_line(format_args!("{}", resource_name(&name.name))),
        None => print_line(format_args!("TenantCluster {name} {what}.")),
    }
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
    let name = TenantName::parse_for(text, host)?;
    let tenant = name.find(&host.client).await?;
    Ok((name, tenant))
}

/// Which namespaces a command about many tenants shows.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct NamespacesArgument {
    /// Show all namespaces, whatever --namespace says, and fail if you may not list the tenants of all. [default: --namespace, or all that you may list]
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
}

impl NamespacesArgument {
    /// The one namespace that is shown; none if all are.
    pub(crate) fn given(self, host: &HostArguments) -> Option<&str> {
        host.namespace.as_deref().filter(|_| !self.all_namespaces)
    }
}

/// The tenants that a command about many of them shows.
#[derive(Debug)]
pub(crate) struct VisibleTenants {
    pub(crate) tenants: Vec<TenantCluster>,
    /// The one namespace that they are of; none if they are of all namespaces.
    pub(crate) namespace: Option<String>,
}

/// Lists the tenants of the namespace that is `given`, or else of all. Who may not list all, as teams usually may not, gets those of
/// the namespace of the context, and a line on stderr says so, unless `namespaces` asks for all.
///
/// # Errors
/// The user may not list these either, or the host does not answer.
pub(crate) async fn list_visible(
    host: &Host,
    given: Option<&str>,
    namespaces: NamespacesArgument,
) -> Result<VisibleTenants, Error> {
    let parameters = ListParams::default();
    if given.is_none() {
        match Api::<TenantCluster>::all(host.client.clone()).list(&parameters).await {
            Ok(list) => {
                return Ok(VisibleTenants {
                    tenants: list.items,
                    namespace: None,
                });
            }
            Err(error) if is_forbidden(&error) && !namespaces.all_namespaces => {
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
    let secret = secrets.get(&reference.name).await.map_err(|error| {
        if is_forbidden(&error) {
            Error::Failed(describe_forbidden(name, tenant, &reference.name, &describe(&error)))
        } else {
            failed("read the kubeconfig")(error)
        }
    })?;
    let text = secret.data.and_then(|mut data| data.remove(KUBECONFIG_KEY));
    let text = text.and_then(|text| String::from_utf8(text.0).ok());
    let text = text.ok_or_else(|| {
        Error::Failed(format!(
            "the Secret {}/{} has no key {KUBECONFIG_KEY}; control writes it again within minutes",
            name.namespace, reference.name
        ))
    })?;
    document::rewrite_tenant(&text).map_err(|error| {
        Error::Failed(format!(
            "the kubeconfig in the Secret {}/{} cannot be used: {error}",
            name.namespace, reference.name
        ))
    })
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
    use crate::host::tests::host_of;
    use crate::testing::{self, refusal};

    #[test]
    fn who_may_not_read_the_secret_learns_how_to_sign_in_or_whom_to_ask() {
        let name = TenantName::parse("team/vision", "").unwrap();
        let text = |status: Value| {
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
    fn a_request_is_an_annotation_with_its_time() {
        let expected = json!({"metadata": {"annotations": {"berth.dev/of-a-test": "2026-05-05T12:00:00Z"}}});
        let at = "2026-05-05T12:00:00Z".parse().unwrap();
        assert_eq!(request_patch("berth.dev/of-a-test", at), expected);
    }

    #[test]
    fn a_tenant_is_named_with_or_without_its_namespace() {
        let name = |text: &str| TenantName::parse(text, "team").map(|name| name.to_string());
        assert_eq!(name("vision").unwrap(), "team/vision");
        assert_eq!(name("other/vision").unwrap(), "other/vision");
        // What `--output name` prints.
        for printed in ["tenantcluster.berth.dev/vision", "tenantclusters.berth.dev/vision"] {
            assert_eq!(name(printed).unwrap(), "team/vision");
            let given = TenantName::parse_given(printed, "team", true).unwrap();
            assert_eq!(given.to_string(), "team/vision");
        }
        for wrong in [
            "",
            "/",
            "a/",
            "/a",
            "a/b/c",
            "tenantcluster.berth.dev/",
            "tenantsnapshot.berth.dev/a/b",
        ] {
            assert!(matches!(name(wrong), Err(Error::Usage(_))), "{wrong}");
        }
    }

    #[test]
    fn a_tenant_that_does_not_exist_is_named_with_those_that_may_be_meant() {
        let name = |text: &str| TenantName::parse(text, "").unwrap();
        let others = ["team/vision", "team/speech", "prod/vision", "prod/vison"].map(name);
        let error = |text: &str| name(text).not_found(&others).to_string();
        let asks = |text: &str| error(text).split_once("; ").map(|(_, question)| question.to_owned());
        // The namespace is most often what is wrong.
        assert_eq!(asks("default/speech").as_deref(), Some("did you mean team/speech?"));
        assert_eq!(
            asks("team/vison").as_deref(),
            Some("did you mean prod/vison, team/vision or prod/vision?")
        );
        assert_eq!(
            error("team/audio"),
            "there is no TenantCluster team/audio; `berth list -A` lists all that you may see"
        );
        assert_eq!(name("team/audio").not_found(&[]).exit_code(), 3);
    }

    /// A host that has the tenant team/any, and is asked by somebody who may list the tenants of all namespaces, or those of the namespace `team`,
    /// of which it says that there is team/own.
    fn client_of_user(may_list_all: bool, may_list_own: bool) -> Client {
        testing::client(move |request| {
            let is_own = request.uri().path().contains("/namespaces/team/");
            let is_allowed = if is_own { may_list_own } else { may_list_all };
            if !is_allowed {
                return refusal(403, "Forbidden");
            }
            let name = if is_own { "own" } else { "any" };
            let item = json!({"kind": "TenantCluster", "apiVersion": "berth.dev/v1alpha1", "spec": {},
                "metadata": {"name": name, "namespace": "team"}});
            let list = json!({"kind": "TenantClusterList", "apiVersion": "berth.dev/v1alpha1", "metadata": {}, "items": [item]});
            (200, list)
        })
    }

    /// Teams may list the tenants of their namespace only.
    #[tokio::test]
    async fn names_are_those_that_the_user_may_list() {
        let names = async |may_list_all: bool, may_list_own: bool| {
            let names = list_names(&client_of_user(may_list_all, may_list_own), "team").await;
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(true, true).await, ["team/any"]);
        assert_eq!(names(false, true).await, ["team/own"]);
        assert!(names(false, false).await.is_empty());
    }

    #[tokio::test]
    async fn who_may_not_list_all_tenants_gets_those_of_the_context_and_an_error_with_all_namespaces() {
        let list = async |may_list_all: bool, given: Option<&str>, all_namespaces: bool| {
            let host = host_of(client_of_user(may_list_all, true), "team");
            let visible = list_visible(&host, given, NamespacesArgument { all_namespaces }).await?;
            let names: Vec<String> = visible.tenants.iter().map(ResourceExt::name_any).collect();
            Ok::<_, Error>((names.concat(), visible.namespace))
        };
        let (any, own) = (("any".to_owned(), None), ("own".to_owned(), Some("team".to_owned())));
        assert_eq!(list(true, None, false).await.unwrap(), any);
        assert_eq!(list(true, None, true).await.unwrap(), any);
        assert_eq!(list(true, Some("team"), false).await.unwrap(), own);
        assert_eq!(list(false, None, false).await.unwrap(), own);
        let error = list(false, None, true).await.unwrap_err().to_string();
        assert!(error.contains("ask the platform for this permission"), "{error}");
    }

    #[test]
    fn all_namespaces_are_shown_whatever_the_namespace_is() {
        use clap::Parser as _;
        let given = |line: &str| {
            let arguments = crate::args::Arguments::try_parse_from(line.split(' ')).unwrap();
            let crate::args::Command::Idle { namespaces, .. } = arguments.command else {
                panic!("not idle")
            };
            namespaces.given(&arguments.host).map(ToOwned::to_owned)
        };
        assert_eq!(given("berth idle"), None);
        assert_eq!(given("berth idle -n team").as_deref(), Some("team"));
        assert_eq!(given("berth idle -n team -A"), None);
    }

    /// A deletion or a restore would be of another tenant than `--namespace` says.
    #[test]
    fn a_name_with_another_namespace_than_that_of_the_flag_is_refused() {
        let name = |text: &str, is_given: bool| TenantName::parse_given(text, "team", is_given);
        for (text, is_given, full) in [
            ("vision", true, "team/vision"),
            ("team/vision", true, "team/vision"),
            ("other/vision", false, "other/vision"),
        ] {
            assert_eq!(name(text, is_given).unwrap().to_string(), full);
        }
        let error = name("other/vision", true).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert_eq!(
            error.to_string(),
            "other/vision is in the namespace other, and --namespace is team: leave out one of them"
        );
    }
}
