//! Rewrites objects that are stored otherwise than their encryption says.
//!
//! Which objects these are is read in etcd: what is stored there is the proof that a key is not needed any more. A patch without content makes the
//! API server store an object again, if it would store it otherwise by now. Control never reads the content.
//!
//! One round goes through all objects, in as many passes as it takes. A round that has found all of them stored as they are to be is the last one.

use super::super::{context::TenantContext, rewriting::Rewriting, target::Tenant};
use crate::{
    apply::optional,
    control_plane::{Encryption, encryption::folder},
    datastore::{HeadPage, IsEnough},
    error::{ReconcileError, api},
    tenant_errors::message,
};
use berth_runtime::locks::lock;
use futures::future::join_all;
use http::StatusCode;
use http_body_util::{BodyExt, Collected, Limited};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GetParams, GroupVersionKind, Patch, PatchParams},
    client::Body,
    core::{Request, Status},
};
use serde::Deserialize;
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::{Instant, timeout_at};

/// Objects that are rewritten in a pass: with the pause after it some dozens in a second, so that others are served meanwhile.
const MOST_REWRITTEN: u64 = 64;
/// Objects that are rewritten at the same time.
const REWRITTEN_AT_ONCE: usize = 8;
/// Time after which a pass reads no further page.
const READING: Duration = Duration::from_secs(5);
/// Time for a pass. A webhook may take 30 s. It is less if the reconcile has waited for the tenant for long before.
const LIMIT: Duration = Duration::from_secs(32);
/// How long before the end of a pass objects are given up that are not answered: what follows them has its turn in the next pass.
const MARGIN: Duration = Duration::from_millis(250);
/// Bytes of an answer that are read. Some objects are answered at the same time, and a server of the tenant's own answers as it likes.
const MAX_ANSWER: usize = 64 << 10;
/// Why an object was given up.
const NOT_ANSWERED: &str = "no answer in time";
/// The same of one whose definition is gone.
const NOT_SERVED: &str = "no CustomResourceDefinition of the tenant serves it";
/// The same of one for which nothing answers, although the definition is there.
const NOT_FOUND: &str = "the API server does not serve it: its CustomResourceDefinition may have names that another one has, or another scope than when it was stored";
/// Where the tenant's CustomResourceDefinitions are.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// What a pass has come to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rewritten {
    /// A round has found every object stored as it is to be.
    All,
    /// There may be more objects. How far it is, for people.
    Part(String),
}

/// One pass. All API servers that run must write as `encryption` says.
///
/// # Errors
/// The datastore or the tenant's API server fails or does not answer.
pub(super) async fn rewrite(
    context: &TenantContext,
    tenant: &Tenant,
    encryption: &Encryption,
    client: &Client,
) -> Result<Rewritten, ReconcileError> {
    let mut progress = lock(&tenant.memory.rewriting).clone();
    let time = tenant.slot.shorten(LIMIT);
    let until = Instant::now() + time.saturating_sub(MARGIN);
    let pass = run_pass(context, tenant, encryption, client, until, &mut progress);
    let ended = tenant.slot.lend(time, Box::pin(pass)).await;
    let message = progress.describe();
    *lock(&tenant.memory.rewriting) = progress;
    match ended {
        None => Ok(Rewritten::Part(format!(
            "{message}; etcd or the tenant's API server is slow"
        ))),
        Some(Ok(true)) => Ok(Rewritten::All),
        Some(Ok(false)) => Ok(Rewritten::Part(message)),
        Some(Err(error)) => Err(error),
    }
}

/// Whether the last round has come no further, because the tenant's API server does not store again what is left.
pub(super) fn is_refused(tenant: &Tenant) -> bool {
    lock(&tenant.memory.rewriting).is_refused()
}

/// Whether the next pass waits for longer than others, because it would come no further.
pub(super) fn is_in_vain(tenant: &Tenant) -> bool {
    lock(&tenant.memory.rewriting).is_in_vain()
}

/// Notes that an API server may run that writes otherwise: what the round that is under way has seen may be stored otherwise by now.
pub(super) fn note_other_api_server(tenant: &Tenant) {
    lock(&tenant.memory.rewriting).interrupt();
}

/// Whether the last round has ended in this pass. Objects that are not answered are given up at `until`.
async fn run_pass(
    context: &TenantContext,
    tenant: &Tenant,
    encryption: &Encryption,
    client: &Client,
    until: Instant,
    progress: &mut Rewriting,
) -> Result<bool, ReconcileError> {
    let begun = Instant::now();
    let resources: Vec<&str> = encryption.resources().into_iter().collect();
    let most = progress.found() + MOST_REWRITTEN;
    let mut kinds = Kinds::default();
    loop {
        let Some(resource) = resources.get(progress.resource).copied() else {
            return Ok(progress.end_round());
        };
        if begun.elapsed() >= READING || Instant::now() >= until || progress.found() >= most {
            return Ok(false);
        }
        let mut found = progress.found();
        let mut is_enough = |head: &[u8]| {
            found += u64::from(!encryption.is_current(resource, head));
            found >= most
        };
        let folder = folder(resource);
        let page = read_page(context, tenant, &folder, progress.after.as_deref(), &mut is_enough).await?;
        let is_last = !page.has_more || page.heads.is_empty();
        for heads in page.heads.chunks(REWRITTEN_AT_ONCE) {
            let others = names_of_others(heads, encryption, resource);
            if !others.is_empty() {
                if Instant::now() >= until || progress.found() >= most {
                    return Ok(false);
                }
                let kind = kinds.find(client, resource, until).await;
                rewrite_objects(client, (resource, kind), &others, until, progress).await?;
            }
            progress.after = heads.last().map(|(name, _)| name.clone());
        }
        if is_last {
            progress.resource += 1;
            progress.after = None;
        }
    }
}

/// The names of those that are stored otherwise than the encryption says. API servers name objects by texts. Of what else is there, none answers that it is
/// stored.
fn names_of_others(heads: &[(Vec<u8>, Vec<u8>)], encryption: &Encryption, resource: &str) -> Vec<String> {
    let others = heads.iter().filter(|(_, head)| !encryption.is_current(resource, head));
    others
        .map(|(name, _)| String::from_utf8_lossy(name).into_owned())
        .collect()
}

/// A page of what etcd has of a tenant. One at a time is read, over all tenants, which take turns: a page takes up to 16 MiB of memory, and half a second if
/// etcd is not slow.
///
/// # Errors
/// The datastore refuses or does not answer.
pub(super) async fn read_page(
    context: &TenantContext,
    tenant: &Tenant,
    folder: &str,
    after: Option<&[u8]>,
    is_enough: &mut IsEnough<'_>,
) -> Result<HeadPage, ReconcileError> {
    let _turn = context.tenants.head_reading.lock().await;
    Ok(context
        .datastore
        .read_heads(&tenant.id, folder, after, is_enough)
        .await?)
}

/// Rewrites objects of a resource, by their keys below its folder: all of these at the same time, so that one that is not answered keeps no other one
/// back. What is refused is noted if all are done with: otherwise they are looked at again.
async fn rewrite_objects(
    client: &Client,
    (resource, kind): (&str, Result<ApiResource, String>),
    keys: &[String],
    until: Instant,
    progress: &mut Rewriting,
) -> Result<(), ReconcileError> {
    let kind = match kind {
        Ok(kind) => kind,
        Err(why) => {
            for key in keys {
                progress.add_refused(&format!("{resource} {key}"), &why);
            }
            return Ok(());
        }
    };
    let patches = keys
        .iter()
        .map(|key| timeout_at(until, rewrite_object(client, &kind, key)));
    let results = join_all(patches).await;
    let (mut refused, mut failed) = (Vec::new(), None);
    for (key, result) in keys.iter().zip(results) {
        let object = format!("{resource} {key}");
        match result {
            Ok(Ok(())) => progress.add_rewritten(&object),
            // It may concern this object alone. Whatever it is, the next round tries again.
            Ok(Err(kube::Error::Api(status))) => refused.push((object, status.message)),
            // A server of the tenant's own may answer anything, and etcd may have a key that names no object. That must not keep others from being rewritten.
            Ok(Err(error)) if is_custom(resource) || matches!(error, kube::Error::BuildRequest(_)) => {
                refused.push((object, message(&error)));
            }
            Ok(Err(error)) => failed = Some(error),
            Err(_) => refused.push((object, NOT_ANSWERED.to_owned())),
        }
    }
    if let Some(error) = failed {
        return Err(api("rewrite an object of the tenant")(error));
    }
    for (object, why) in refused {
        progress.add_refused(&object, &why);
    }
    Ok(())
}

/// Lets the API server store an object again. That it is gone is no error, but that there is no such resource or namespace is: the object is still
/// stored then. What it says of the object is not looked at.
async fn rewrite_object(client: &Client, kind: &ApiResource, key: &str) -> kube::Result<()> {
    let (objects, name): (Api<DynamicObject>, &str) = match key.rsplit_once('/') {
        Some((namespace, name)) => (Api::namespaced_with(client.clone(), namespace, kind), name),
        None => (Api::all_with(client.clone(), kind), key),
    };
    let nothing = Patch::Merge(json!({}));
    let request = Request::new(objects.resource_url()).patch_metadata(name, &PatchParams::default(), &nothing);
    let request = request.map_err(kube::Error::BuildRequest)?;
    let answer = client.send(request.map(Body::from)).await?;
    let code = answer.status();
    // Also if nobody looks at it: the connection serves the next request then.
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    if code.is_success() {
        return Ok(());
    }
    let body = body.map(Collected::to_bytes).unwrap_or_default();
    let mut status = serde_json::from_slice::<Status>(&body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&body);
        Status::failure(text.trim(), "Unknown").with_code(code.as_u16())
    });
    if code == StatusCode::NOT_FOUND {
        let details = status.details.as_ref();
        if details.is_some_and(|details| details.name == name && details.kind == kind.plural) {
            return Ok(());
        }
        status.message = format!("{NOT_FOUND} ({})", status.message);
    }
    Err(kube::Error::Api(status.boxed()))
}

/// Whether a resource is one of CustomResourceDefinitions, which a server of the tenant's own may serve.
fn is_custom(resource: &str) -> bool {
    resource.contains('.')
}

/// How the API server serves resources, as far as a pass has asked, or why that is not known: a definition has up to 1.5 MiB.
#[derive(Default)]
struct Kinds(BTreeMap<String, Result<ApiResource, String>>);

impl Kinds {
    /// How the API server serves a resource, or why objects of it cannot be rewritten. A definition that cannot be read keeps no other resource back.
    async fn find(&mut self, client: &Client, resource: &str, until: Instant) -> Result<ApiResource, String> {
        if let Some(known) = self.0.get(resource) {
            return known.clone();
        }
        let found = match timeout_at(until, find_kind(client, resource)).await {
            Ok(Ok(Some(kind))) => Ok(kind),
            Ok(Ok(None)) => Err(NOT_SERVED.to_owned()),
            Ok(Err(error)) => Err(message(&error)),
            Err(_) => Err(NOT_ANSWERED.to_owned()),
        };
        self.0.insert(resource.to_owned(), found.clone());
        found
    }
}

/// How the API server serves a resource; none if it does not.
async fn find_kind(client: &Client, resource: &str) -> kube::Result<Option<ApiResource>> {
    // Its kind is in no path.
    let kind = |group: &str, version: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, ""), plural)
    };
    let Some((plural, group)) = resource.split_once('.') else {
        return Ok(Some(kind("", "v1", resource)));
    };
    let version = find_version(client, resource).await?;
    Ok(version.map(|version| kind(group, &version, plural)))
}

/// What is read of a CustomResourceDefinition. Its schema, which the team decides on, would take up to seven times the memory that answers may take, as
/// an object with all of its fields.
#[derive(Deserialize)]
struct Definition {
    spec: DefinitionSpec,
}

#[derive(Deserialize)]
struct DefinitionSpec {
    versions: Vec<DefinitionVersion>,
}

#[derive(Deserialize)]
struct DefinitionVersion {
    name: String,
    served: bool,
}

/// A version in which the API server serves a custom resource; none if it serves none.
async fn find_version(client: &Client, resource: &str) -> kube::Result<Option<String>> {
    let request = Request::new(DEFINITIONS).get(resource, &GetParams::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    let Some(text) = optional(client.request_text(request).await)? else {
        return Ok(None);
    };
    let definition: Definition = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
    let mut versions = definition.spec.versions.into_iter();
    Ok(versions.find(|version| version.served).map(|version| version.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::client_of;
    use http::{HeaderValue, Response, header::CONTENT_TYPE};
    use std::convert::Infallible;

    /// A client whose API server answers so.
    fn answering(code: u16, body: Vec<u8>) -> Client {
        client_of(tower::service_fn(move |_: http::Request<Body>| {
            let mut answer = Response::new(Body::from(body.clone()));
            *answer.status_mut() = StatusCode::from_u16(code).unwrap();
            answer
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            async move { Ok::<_, Infallible>(answer) }
        }))
    }

    /// What comes of an object if the API server answers so.
    async fn rewritten(code: u16, body: Vec<u8>) -> Result<(), (u16, String)> {
        let client = answering(code, body);
        let kind = find_kind(&client, "secrets").await.unwrap().unwrap();
        match rewrite_object(&client, &kind, "team/a").await {
            Ok(()) => Ok(()),
            Err(kube::Error::Api(status)) => Err((status.code, status.message.clone())),
            Err(error) => panic!("{error}"),
        }
    }

    #[tokio::test]
    async fn of_an_answer_the_code_and_the_message_of_a_refusal_are_read() {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": 403});
        for (code, body, expected) in [
            (200, b"no object".to_vec(), Ok(())),
            (403, status.to_string().into_bytes(), Err((403, "no".to_owned()))),
            (503, b" later\n".to_vec(), Err((503, "later".to_owned()))),
        ] {
            assert_eq!(rewritten(code, body).await, expected, "{code}");
        }
    }

    /// The next round does not find an object that is gone, and it would find all others again.
    #[tokio::test]
    async fn only_an_object_that_is_gone_itself_need_not_be_rewritten() {
        let missing = |kind: &str, name: &str| {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                "message": format!("{kind} {name:?} not found"), "details": {"kind": kind, "name": name}});
            status.to_string().into_bytes()
        };
        assert_eq!(rewritten(404, missing("secrets", "a")).await, Ok(()));
        for body in [
            b"404 page not found\n".to_vec(),
            missing("namespaces", "team"),
            missing("namespaces", "a"),
            Vec::new(),
        ] {
            let (code, message) = rewritten(404, body).await.unwrap_err();
            assert!(code == 404 && message.starts_with(NOT_FOUND), "{message}");
        }
    }

    #[tokio::test]
    async fn a_key_that_names_no_object_keeps_no_other_one_back() {
        let client = answering(200, b"no object".to_vec());
        let kind = find_kind(&client, "secrets").await.unwrap().unwrap();
        let keys = ["team/".to_owned(), "team/a".to_owned()];
        let mut progress = Rewriting::default();
        let until = Instant::now() + LIMIT;
        let pass = rewrite_objects(&client, ("secrets", Ok(kind)), &keys, until, &mut progress);
        pass.await.unwrap();
        let message = progress.describe();
        assert!(
            message.starts_with("1 objects were rewritten")
                && message.contains("refused 1, the first is secrets team/: "),
            "{message}"
        );
    }

    /// Connections that end are no refusals: the page is looked at again, and its objects count once.
    #[tokio::test]
    async fn of_a_page_that_is_looked_at_again_only_what_is_stored_counts() {
        let client = client_of(tower::service_fn(|request: http::Request<Body>| async move {
            let path = request.uri().path();
            if path.ends_with("/a") {
                return Err(std::io::Error::other("the connection has ended"));
            }
            let mut answer = Response::new(Body::from(b"no object".to_vec()));
            if path.ends_with("/b") {
                *answer.status_mut() = StatusCode::FORBIDDEN;
            }
            Ok(answer)
        }));
        let kind = find_kind(&client, "secrets").await.unwrap().unwrap();
        let keys = ["a", "b", "c"].map(|name| format!("team/{name}"));
        let mut progress = Rewriting::default();
        let until = Instant::now() + LIMIT;
        let pass = rewrite_objects(&client, ("secrets", Ok(kind)), &keys, until, &mut progress);
        assert!(pass.await.is_err());
        assert_eq!(progress.found(), 1, "{}", progress.describe());
    }

    #[tokio::test]
    async fn of_a_long_answer_nothing_is_kept() {
        let long = vec![b'x'; MAX_ANSWER + 1];
        assert_eq!(rewritten(200, long.clone()).await, Ok(()));
        assert_eq!(rewritten(500, long).await, Err((500, String::new())));
    }
}
