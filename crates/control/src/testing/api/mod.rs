//! An API server in memory, behind a client without a connection. It knows no kinds: objects are stored by path.

mod status_patch;

use super::{Script, client_of, merge};
use berth_runtime::locks::lock;
use http::{Method, Request, Response, header::CONTENT_TYPE};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use status_patch::PatchKind;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

/// Annotation of pods that do not end: only a deletion without a grace period removes them.
pub(crate) const NEVER_ENDS: &str = "testing.berth.dev/never-ends";

/// An API server in memory. Its calls are recorded in a script; those that the script fails get status 500.
#[derive(Clone)]
pub(crate) struct ScriptedApi {
    name: &'static str,
    script: Script,
    objects: Arc<Mutex<Objects>>,
}

#[derive(Default)]
struct Objects {
    by_path: BTreeMap<String, Value>,
    /// Answers of paths that are not objects.
    served: BTreeMap<String, Value>,
    /// Part of the paths to which writes are never answered.
    silent: Option<&'static str>,
    /// Part of the paths to which connections end with which somebody writes.
    broken: Option<&'static str>,
    /// Part of the paths about which nothing is ever answered.
    mute: Option<&'static str>,
    /// How long each answer takes.
    delay: Duration,
    /// Part of the paths to which writes are refused, with which code and message.
    refused: Option<(&'static str, u16, &'static str)>,
    /// Part of paths, and before how many patches and deletions somebody else changes the object.
    contended: Option<(&'static str, usize)>,
    written: u64,
    /// Where somebody asked whether it is ready.
    probed: BTreeSet<String>,
    /// Where it answers that it is not.
    unready: Option<&'static str>,
}

/// What a path names.
struct Target {
    /// Path of the collection.
    collection: String,
    name: Option<String>,
    subresource: Option<String>,
    namespace: Option<String>,
}

impl ScriptedApi {
    pub(crate) fn new(name: &'static str, script: &Script) -> Self {
        Self {
            name,
            script: script.clone(),
            objects: Arc::default(),
        }
    }

    /// A client of this server.
    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        client_of(tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                if api.is_broken(&request) {
                    return Err(std::io::Error::other("the connection has ended"));
                }
                Ok(api.answer(request).await)
            }
        }))
    }

    /// Stores an object without a call.
    pub(crate) fn insert(&self, path: &str, object: Value) {
        self.objects().store(path, object);
    }

    /// Sets the answer of a path that is not an object, such as the resources of a group; null: none. A string is the answer itself.
    pub(crate) fn serve(&self, path: &str, answer: Value) {
        self.objects().served.insert(path.to_owned(), answer);
    }

    /// Never answers writes to paths that contain `part`, as if a webhook did not answer. None: answers all.
    pub(crate) fn never_answer_writes(&self, part: Option<&'static str>) {
        self.objects().silent = part;
    }

    /// Ends the connections of writes to paths that contain `part`, which are no calls then. None: ends none.
    pub(crate) fn break_writes(&self, part: Option<&'static str>) {
        self.objects().broken = part;
    }

    fn is_broken(&self, request: &Request<Body>) -> bool {
        let broken = self.objects().broken;
        request.method() != Method::GET && broken.is_some_and(|part| request.uri().path().contains(part))
    }

    /// Refuses writes to paths that contain a part, with a code and a message. None: refuses none.
    pub(crate) fn refuse_writes(&self, refusal: Option<(&'static str, u16, &'static str)>) {
        self.objects().refused = refusal;
    }

    /// Whether it refuses writes to a path now.
    pub(crate) fn refuses_writes_to(&self, path: &str) -> bool {
        self.objects().refused.is_some_and(|(part, ..)| path.contains(part))
    }

    /// Never answers anything about paths that contain `part`. None: answers all.
    pub(crate) fn never_answer(&self, part: Option<&'static str>) {
        self.objects().mute = part;
    }

    /// Lets each answer take a while.
    pub(crate) fn delay(&self, delay: Duration) {
        self.objects().delay = delay;
    }

    /// Before each of the next patches and deletions of paths that contain `part`, somebody else changes the object.
    pub(crate) fn change_before_writes(&self, part: &'static str, writes: usize) {
        self.objects().contended = Some((part, writes));
    }

    /// Removes an object without a call.
    pub(crate) fn remove(&self, path: &str) {
        self.objects().by_path.remove(path);
    }

    /// The object at a path.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.objects().by_path.get(path).cloned()
    }

    /// Objects whose paths contain `part`.
    pub(crate) fn find(&self, part: &str) -> Vec<Value> {
        let objects = self.objects();
        let found = objects.by_path.iter().filter(|(path, _)| path.contains(part));
        found.map(|(_, object)| object.clone()).collect()
    }

    /// Is not ready for those who ask at `path`. None: it is ready for all.
    pub(crate) fn set_unready(&self, path: Option<&'static str>) {
        self.objects().unready = path;
    }

    /// Where somebody has asked whether it is ready since this was called last.
    pub(crate) fn take_probes(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.objects().probed)
    }

    /// Paths of all objects.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.objects().by_path.keys().cloned().collect()
    }

    fn objects(&self) -> std::sync::MutexGuard<'_, Objects> {
        lock(&self.objects)
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        if path == "/readyz" {
            let asked = parts.uri.to_string();
            let is_unready = self.objects().unready.is_some_and(|unready| asked == unready);
            self.objects().probed.insert(asked);
            if is_unready {
                return refuse(500, "not ready");
            }
            return Response::new(Body::from(b"ok".to_vec()));
        }
        if !self.script.record(format!("{} {} {path}", self.name, parts.method)) {
            return refuse(500, "the script says so");
        }
        let (mute, silent, refused, delay) = {
            let objects = self.objects();
            (objects.mute, objects.silent, objects.refused, objects.delay)
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let is_about = |part: Option<&str>| part.is_some_and(|part| path.contains(part));
        if is_about(mute) || (parts.method != Method::GET && is_about(silent)) {
            std::future::pending::<()>().await;
        }
        if let Some((part, code, message)) = refused
            && parts.method != Method::GET
            && path.contains(part)
        {
            return refuse(code, message);
        }
        let bytes = body.collect_bytes().await.unwrap_or_default();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let query = parts.uri.query().unwrap_or_default();
        let manager = query.split('&').find_map(|pair| pair.strip_prefix("fieldManager="));
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let kind = PatchKind::of(content_type.unwrap_or_default());
        let mut objects = self.objects();
        if let Some(served) = objects.served.get(&path).filter(|served| !served.is_null()) {
            let text = served.as_str().map_or_else(|| served.to_string(), ToOwned::to_owned);
            return Response::new(Body::from(text.into_bytes()));
        }
        let Some(target) = Target::parse(&path) else {
            return refuse(404, "not served");
        };
        let answer = match (&parts.method, &target.name) {
            (&Method::GET, Some(_)) => objects.get(&target.path()),
            (&Method::GET, None) => Ok(objects.list(&target.collection, query)),
            (&Method::POST, _) => objects.create(&target, body),
            (&Method::PUT, Some(_)) => Ok(objects.store(&target.path(), body)),
            (&Method::PATCH, Some(_)) => objects.patch(&target, &body, kind, manager),
            (&Method::DELETE, Some(_)) => objects.delete(&target.path(), &body),
            (&Method::DELETE, None) => Ok(objects.delete_collection(&target.collection, &body)),
            _ => Err((405, "not allowed")),
        };
        match answer {
            Ok(value) => Response::new(Body::from(value.to_string().into_bytes())),
            Err((404, message)) => refuse_missing(&target, message),
            Err((code, message)) => refuse(code, message),
        }
    }
}

fn refuse(code: u16, message: &str) -> Response<Body> {
    answer_failure(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}),
    )
}

/// What an API server answers if there is no such object: it names the object.
fn refuse_missing(target: &Target, message: &str) -> Response<Body> {
    let resource = target.collection.rsplit('/').next();
    let details = json!({"kind": resource, "name": target.name});
    answer_failure(
        404,
        &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "message": message, "details": details, "code": 404}),
    )
}

fn answer_failure(code: u16, status: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}

impl Target {
    /// None for paths that are neither objects nor collections.
    fn parse(path: &str) -> Option<Self> {
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let root = if segments.first() == Some(&"api") { 2 } else { 3 };
        let (root, rest) = segments.split_at_checked(root)?;
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let (resource, rest) = rest.split_first()?;
        let mut collection = format!("/{}", root.join("/"));
        if let Some(namespace) = namespace {
            collection = format!("{collection}/namespaces/{namespace}");
        }
        Some(Self {
            collection: format!("{collection}/{resource}"),
            name: rest.first().map(ToString::to_string),
            subresource: rest.get(1).map(ToString::to_string),
            namespace: namespace.map(ToOwned::to_owned),
        })
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection, self.name.as_deref().unwrap_or_default())
    }
}

type Answer = Result<Value, (u16, &'static str)>;

impl Objects {
    fn get(&self, path: &str) -> Answer {
        self.by_path.get(path).cloned().ok_or((404, "not found"))
    }

    fn list(&self, collection: &str, query: &str) -> Value {
        let selector = query.split('&').find_map(|pair| pair.strip_prefix("labelSelector="));
        let selector = decode(selector.unwrap_or_default());
        let prefix = format!("{collection}/");
        let items = self.by_path.iter().filter(|(path, object)| {
            let is_direct = path.strip_prefix(&prefix).is_some_and(|name| !name.contains('/'));
            is_direct && matches(object, &selector)
        });
        let items: Vec<&Value> = items.map(|(_, object)| object).collect();
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
    }

    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.written += 1;
        let metadata = &mut object["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("uid-{}", self.written).into();
        }
        metadata["resourceVersion"] = self.written.to_string().into();
        self.by_path.insert(path.to_owned(), object.clone());
        object
    }

    fn create(&mut self, target: &Target, mut object: Value) -> Answer {
        if target.collection.ends_with("/selfsubjectaccessreviews") {
            object["status"] = json!({"allowed": true});
            object["metadata"] = json!({});
            return Ok(object);
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let path = format!("{}/{name}", target.collection);
        if self.by_path.contains_key(&path) {
            return Err((409, "exists"));
        }
        if let Some(namespace) = &target.namespace {
            object["metadata"]["namespace"] = namespace.clone().into();
        }
        Ok(self.store(&path, object))
    }

    /// Changes the object at a path if it is contended.
    fn contend(&mut self, path: &str) {
        if let Some((part, left)) = &mut self.contended
            && path.contains(*part)
            && *left > 0
            && let Some(object) = self.by_path.get(path).cloned()
        {
            *left -= 1;
            self.store(path, object);
        }
    }

    /// Changes the status of an object.
    fn patch_status(&mut self, target: &Target, body: &Value, kind: PatchKind, manager: &str) -> Answer {
        let path = target.path();
        let live = self.get(&path)?;
        let mut object = live.clone();
        match kind {
            PatchKind::Json => status_patch::carry_out(&mut object, body)
                .ok_or((422, "the server rejected our request due to an error in our request"))?,
            PatchKind::Merge => merge(&mut object, &json!({"status": body["status"]})),
            PatchKind::Apply => status_patch::apply(&mut object, manager, &body["status"]),
            PatchKind::Strategic => object["status"] = body["status"].clone(),
        }
        if object["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"] {
            return Err((409, "the object was changed"));
        }
        if let Some(namespace) = &target.namespace {
            object["metadata"]["namespace"] = namespace.clone().into();
        }
        Ok(self.store(&path, object))
    }

    fn patch(&mut self, target: &Target, body: &Value, kind: PatchKind, manager: Option<&str>) -> Answer {
        let path = target.path();
        self.contend(&path);
        let mut object = match self.by_path.get(&path) {
            Some(object) => object.clone(),
            None if manager.is_some() && target.subresource.is_none() => json!({"metadata": {"name": target.name}}),
            None => return Err((404, "not found")),
        };
        for precondition in ["uid", "resourceVersion"] {
            let (expected, actual) = (&body["metadata"][precondition], &object["metadata"][precondition]);
            if !expected.is_null() && expected != actual {
                return Err((409, "the object was changed"));
            }
        }
        if target.subresource.is_some() {
            return self.patch_status(target, body, kind, manager.unwrap_or_default());
        }
        let before = object.clone();
        merge(&mut object, body);
        if changes_fixed(&before, &object) {
            return Err((422, "the field is immutable"));
        }
        if let Some(namespace) = &target.namespace {
            object["metadata"]["namespace"] = namespace.clone().into();
        }
        let metadata = &object["metadata"];
        let is_kept = metadata["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if !metadata["deletionTimestamp"].is_null() && !is_kept {
            self.by_path.remove(&path);
            return Ok(object);
        }
        Ok(self.store(&path, object))
    }

    /// A namespace is deleted with everything in it. An object with finalizers stays.
    fn delete(&mut self, path: &str, options: &Value) -> Answer {
        self.contend(path);
        let mut object = self.get(path)?;
        for precondition in ["uid", "resourceVersion"] {
            let expected = &options["preconditions"][precondition];
            if !expected.is_null() && *expected != object["metadata"][precondition] {
                return Err((409, "the object was changed"));
            }
        }
        if object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
        {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            return Ok(self.store(path, object));
        }
        if object["metadata"]["annotations"][NEVER_ENDS] == "true" && options["gracePeriodSeconds"] != 0 {
            if object["metadata"]["deletionTimestamp"].is_null() {
                // Its grace period has been over for long.
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                object["metadata"]["deletionGracePeriodSeconds"] = 30.into();
            }
            return Ok(self.store(path, object));
        }
        self.by_path.remove(path);
        if let Some(name) = path
            .strip_prefix("/api/v1/namespaces/")
            .filter(|name| !name.contains('/'))
        {
            let inside = format!("/namespaces/{name}/");
            self.by_path.retain(|path, _| !path.contains(&inside));
        }
        Ok(object)
    }

    fn delete_collection(&mut self, collection: &str, options: &Value) -> Value {
        let prefix = format!("{collection}/");
        let inside = self.by_path.keys().filter(|path| path.starts_with(&prefix));
        for path in inside.cloned().collect::<Vec<_>>() {
            let _ = self.delete(&path, options);
        }
        json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})
    }
}

/// Whether something was changed that nobody can change.
fn changes_fixed(before: &Value, after: &Value) -> bool {
    let is_changed = |field: &str| !before[field].is_null() && before[field] != after[field];
    let is_immutable = before["immutable"] == true;
    ["roleRef", "addressType", "type"].into_iter().any(is_changed) || is_immutable && is_changed("data")
}

/// Whether an object has the labels of a selector of `key=value` and `key`.
fn matches(object: &Value, selector: &str) -> bool {
    let labels = &object["metadata"]["labels"];
    selector
        .split(',')
        .filter(|part| !part.is_empty())
        .all(|part| match part.split_once('=') {
            Some((key, value)) => labels[key] == value,
            None => !labels[part].is_null(),
        })
}

/// Undoes the percent encoding of a query.
fn decode(text: &str) -> String {
    let (mut bytes, mut decoded) = (text.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits = [bytes.next().unwrap_or(b'0'), bytes.next().unwrap_or(b'0')];
                u8::from_str_radix(&String::from_utf8_lossy(&digits), 16).unwrap_or(b'?')
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
