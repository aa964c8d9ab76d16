//! Which resources an API server has in a version of a group.
//!
//! The client's own discovery takes each resource whose name begins with that of another one and `/` as a part of it, and so on: for a few
//! dozen names that continue each other it takes years, and for thousands the stack is too small. A tenant serves groups by servers of its
//! own, so that nothing in such a list is believed: subresources are not looked at, and neither are names that are no part of a path.

use http::Request;
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use kube::{
    Client, Error,
    api::{ApiResource, GroupVersionKind},
    client::Body,
    core::Status,
};
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use std::{collections::BTreeSet, fmt};

/// Bytes of a list that are read. That of the core group, which has many subresources, has 15 KiB.
const MAX_LIST: usize = 1 << 20;
/// Resources of a list besides subresources. Providers of clouds have some hundreds in a group.
const MAX_RESOURCES: usize = 2000;
/// Versions of a group in which a kind is looked for, besides its own. CustomResourceDefinitions rarely have more than three.
const MAX_VERSIONS: usize = 16;
/// Bytes of a group, a version or the name of an object.
const MAX_SEGMENT: usize = 253;

/// A resource of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its names.
    pub resource: ApiResource,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
}

/// A list of resources, as far as it is read.
#[derive(Deserialize)]
struct List {
    #[serde(default, deserialize_with = "read_entries")]
    resources: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    name: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    namespaced: bool,
}

/// A group of an API server.
#[derive(Deserialize)]
struct Group {
    /// Go writes an empty list as null.
    #[serde(default)]
    versions: Option<Vec<Version>>,
}

#[derive(Deserialize)]
struct Version {
    #[serde(default)]
    version: String,
}

/// Whether a text can be one segment of a path, as it is: others would be more segments, a query, or another place.
pub fn is_segment(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
    (1..=MAX_SEGMENT).contains(&text.len()) && text != "." && text != ".." && text.bytes().all(is_plain)
}

/// The resources of a version of a group; the core group is empty. None if the API server does not serve it.
///
/// # Errors
/// The API server does not answer, refuses, or has more resources than are read.
pub async fn resources(client: &Client, group: &str, version: &str) -> Result<Vec<Resource>, Error> {
    if !is_segment(version) || !(group.is_empty() || is_segment(group)) {
        return Ok(Vec::new());
    }
    let path = if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    };
    let Some(body) = get(client, &path).await? else {
        return Ok(Vec::new());
    };
    let list: List = serde_json::from_slice(&body).map_err(Error::SerdeError)?;
    let of_entry = |entry: Entry| Resource {
        // The list may say that a resource is of another group or version.
        resource: ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, &entry.kind), &entry.name),
        is_namespaced: entry.namespaced,
    };
    Ok(list.resources.into_iter().map(of_entry).collect())
}

/// The first resource of a kind; none if the API server does not serve the kind.
///
/// # Errors
/// As [`resources`].
pub async fn find(client: &Client, kind: &GroupVersionKind) -> Result<Option<Resource>, Error> {
    let all = resources(client, &kind.group, &kind.version).await?;
    Ok(all.into_iter().find(|found| found.resource.kind == kind.kind))
}

/// The first resource of a kind in its version, or else in another one of its group, as API servers serve each object in all versions of its
/// kind; none if the API server serves the kind in no version.
///
/// # Errors
/// As [`resources`], for any of the versions, or there are more of them than are looked at.
pub async fn find_in_any_version(client: &Client, kind: &GroupVersionKind) -> Result<Option<Resource>, Error> {
    let own = find(client, kind).await?;
    // The core group has one version.
    if own.is_some() || !is_segment(&kind.group) || !is_segment(&kind.version) {
        return Ok(own);
    }
    for version in versions(client, &kind.group).await? {
        if version == kind.version {
            continue;
        }
        let other = GroupVersionKind::gvk(&kind.group, &version, &kind.kind);
        let found = find(client, &other).await?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The versions of a group, the one that the API server prefers first. None if it does not serve the group.
async fn versions(client: &Client, group: &str) -> Result<Vec<String>, Error> {
    let Some(body) = get(client, &format!("/apis/{group}")).await? else {
        return Ok(Vec::new());
    };
    let group: Group = serde_json::from_slice(&body).map_err(Error::SerdeError)?;
    let mut seen = BTreeSet::new();
    let mut versions: Vec<String> = group
        .versions
        .unwrap_or_default()
        .into_iter()
        .map(|version| version.version)
        .collect();
    versions.retain(|version| is_segment(version) && seen.insert(version.clone()));
    if versions.len() > MAX_VERSIONS {
        let message = format!("the group has more than {MAX_VERSIONS} versions");
        return Err(Error::SerdeError(<serde_json::Error as de::Error>::custom(message)));
    }
    Ok(versions)
}

/// The answer of a path; none if the API server does not serve it.
async fn get(client: &Client, path: &str) -> Result<Option<Bytes>, Error> {
    let request = Request::get(path).body(Body::empty()).map_err(Error::HttpError)?;
    let answer = client.send(request).await?;
    let code = answer.status();
    if code.as_u16() == 404 {
        return Ok(None);
    }
    if !code.is_success() {
        let status = Status::failure(&format!("the answer of {path} is {code}"), "").with_code(code.as_u16());
        return Err(Error::Api(status.boxed()));
    }
    let body = Limited::new(answer.into_body(), MAX_LIST).collect().await;
    Ok(Some(body.map_err(Error::Service)?.to_bytes()))
}

/// Reads the entries of a list that are no subresources, and not more of them than [`MAX_RESOURCES`].
fn read_entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Entry>, D::Error> {
    struct Entries;

    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<Entry>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "at most {MAX_RESOURCES} resources")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<Entry>, A::Error> {
            let mut found = Vec::new();
            while let Some(entry) = entries.next_element::<Entry>()? {
                if !is_segment(&entry.name) {
                    continue;
                }
                if found.len() == MAX_RESOURCES {
                    return Err(de::Error::invalid_length(MAX_RESOURCES + 1, &self));
                }
                found.push(entry);
            }
            Ok(found)
        }

        /// Go writes an empty list like that.
        fn visit_unit<E: de::Error>(self) -> Result<Vec<Entry>, E> {
            Ok(Vec::new())
        }
    }

    deserializer.deserialize_any(Entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use serde_json::{Value, json};
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    /// A client of an API server that answers everything like that, and the paths that were asked for.
    fn server(code: u16, text: String) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let paths = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            paths.lock().unwrap().push(request.uri().to_string());
            let answer = Response::builder()
                .status(code)
                .body(Body::from(text.clone().into_bytes()));
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        (Client::new(service, "default"), asked)
    }

    fn list(resources: &Value) -> String {
        json!({"kind": "APIResourceList", "groupVersion": "evil.example/v1", "resources": resources}).to_string()
    }

    async fn read(text: String) -> Result<Vec<Resource>, Error> {
        resources(&server(200, text).0, "a.example", "v1").await
    }

    async fn names(resources: &Value) -> Vec<String> {
        let read = read(list(resources)).await.unwrap();
        read.into_iter().map(|found| found.resource.plural).collect()
    }

    #[tokio::test]
    async fn resources_are_those_of_the_group_that_was_asked_for() {
        let entries = json!([
            {"name": "pods", "kind": "Pod", "namespaced": true, "group": "other.example", "version": "v9", "verbs": ["get"]},
            {"name": "pods/status", "kind": "Pod", "namespaced": true},
            {"name": "nodes", "kind": "Node", "namespaced": false}
        ]);
        let (client, asked) = server(200, list(&entries));
        let found = resources(&client, "", "v1").await.unwrap();
        let kind = |kind: &str| GroupVersionKind::gvk("", "v1", kind);
        let expected =
            [("Pod", "pods", true), ("Node", "nodes", false)].map(|(name, plural, is_namespaced)| Resource {
                resource: ApiResource::from_gvk_with_plural(&kind(name), plural),
                is_namespaced,
            });
        assert_eq!(found, expected);
        assert_eq!(find(&client, &kind("Node")).await.unwrap(), Some(expected[1].clone()));
        let in_group = GroupVersionKind::gvk("a.example", "v1", "Other");
        assert_eq!(find(&client, &in_group).await.unwrap(), None);
        assert_eq!(*asked.lock().unwrap(), ["/api/v1", "/api/v1", "/apis/a.example/v1"]);
    }

    #[tokio::test]
    async fn names_that_continue_each_other_take_no_time_and_no_stack() {
        // 3.5 KB for which the client's own discovery takes years, and 500 KB for which it ends the process.
        for count in [40, 1000] {
            let entry =
                |length: usize| json!({"name": format!("x{}", "/".repeat(length)), "kind": "X", "namespaced": true});
            let entries: Vec<Value> = (0..count).map(entry).collect();
            assert_eq!(names(&entries.into()).await, ["x"], "{count}");
        }
    }

    #[tokio::test]
    async fn names_that_are_no_part_of_a_path_are_left_out() {
        let odd = ["", ".", "..", "a?b", "a#b", "a%2fb", "a b", "a\\b", "ä"];
        let entries: Vec<Value> = odd.iter().map(|name| json!({"name": name, "kind": "X"})).collect();
        assert_eq!(names(&entries.into()).await, Vec::<String>::new());
        assert!(is_segment("a.b-c:d") && !is_segment(&"a".repeat(254)));
    }

    #[tokio::test]
    async fn lists_have_a_length() {
        let entries = |count: usize| -> Value { vec![json!({"name": "a", "kind": "A"}); count].into() };
        assert_eq!(names(&entries(MAX_RESOURCES)).await.len(), MAX_RESOURCES);
        let error = read(list(&entries(MAX_RESOURCES + 1))).await.unwrap_err();
        assert!(error.to_string().contains("at most 2000 resources"), "{error}");
        let long = format!("{}{}", list(&json!([])), " ".repeat(MAX_LIST));
        assert!(read(long).await.is_err());
        for empty in [r#"{"resources":null}"#, "{}"] {
            assert!(read(empty.to_owned()).await.unwrap().is_empty(), "{empty}");
        }
    }

    #[tokio::test]
    async fn what_is_not_served_has_no_resources() {
        let (client, _) = server(404, "404 page not found".into());
        assert!(resources(&client, "a.example", "v1").await.unwrap().is_empty());
        let (client, _) = server(503, "service unavailable".into());
        let error = resources(&client, "a.example", "v1").await.unwrap_err();
        assert!(matches!(&error, Error::Api(status) if status.code == 503), "{error}");
    }

    /// A client of an API server with these answers; it serves no other path.
    fn server_of(answers: &Value) -> Client {
        let answers = answers.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let found = &answers[request.uri().path()];
            let code = match found {
                Value::Null => 404,
                Value::Number(code) => code.as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500),
                _ => 200,
            };
            let answer = Response::builder()
                .status(code)
                .body(Body::from(found.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        Client::new(service, "default")
    }

    fn group(versions: &[&str]) -> Value {
        let version = |version: &&str| json!({"groupVersion": format!("a.example/{version}"), "version": version});
        let versions: Vec<Value> = versions.iter().map(version).collect();
        json!({"kind": "APIGroup", "apiVersion": "v1", "name": "a.example", "versions": versions})
    }

    #[tokio::test]
    async fn a_kind_is_found_in_another_version_of_its_group() {
        let kind = GroupVersionKind::gvk("a.example", "v1alpha1", "A");
        let resources = json!({"resources": [{"name": "as", "kind": "A", "namespaced": true}]});
        let others = json!({"resources": [{"name": "bs", "kind": "B", "namespaced": true}]});
        let version = async |answers: Value| {
            let found = find_in_any_version(&server_of(&answers), &kind).await;
            found.map(|found| found.map(|found| found.resource.api_version))
        };
        let found = version(
            json!({"/apis/a.example": group(&["v2", "v1alpha1", "v1"]), "/apis/a.example/v2": others,
            "/apis/a.example/v1": resources}),
        );
        assert_eq!(found.await.unwrap().as_deref(), Some("a.example/v1"));
        let found = version(json!({"/apis/a.example/v1alpha1": resources}));
        assert_eq!(found.await.unwrap().as_deref(), Some("a.example/v1alpha1"));
        for gone in [
            json!({}),
            json!({"/apis/a.example": {"versions": null}}),
            json!({"/apis/a.example": group(&["v2", "..", "v1?watch=true"]), "/apis/a.example/v2": others}),
        ] {
            assert_eq!(version(gone.clone()).await.unwrap(), None, "{gone}");
        }
        // It may be in the version that does not answer, or in one that is not looked at.
        let many: Vec<String> = (0..=MAX_VERSIONS).map(|number| format!("v{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for unknown in [
            json!({"/apis/a.example": group(&["v1"]), "/apis/a.example/v1": 503}),
            json!({"/apis/a.example": 503}),
            json!({"/apis/a.example/v1alpha1": 503, "/apis/a.example": group(&[])}),
            json!({"/apis/a.example": group(&many)}),
        ] {
            assert!(version(unknown.clone()).await.is_err(), "{unknown}");
        }
    }

    #[tokio::test]
    async fn nothing_is_asked_for_what_is_no_group() {
        let (client, asked) = server(200, list(&json!([{"name": "a", "kind": "A"}])));
        for (group, version) in [
            ("a/../b", "v1"),
            ("..", "v1"),
            ("a?b", "v1"),
            ("a%2f", "v1"),
            ("a", ".."),
            ("a", "v1?watch=true"),
            ("a", ""),
            ("a", "v1\n"),
        ] {
            let found = resources(&client, group, version).await.unwrap();
            assert!(found.is_empty(), "{group} {version}");
            let kind = GroupVersionKind::gvk(group, version, "A");
            let found = find_in_any_version(&client, &kind).await.unwrap();
            assert_eq!(found, None, "{group} {version}");
        }
        assert!(asked.lock().unwrap().is_empty());
    }
}
