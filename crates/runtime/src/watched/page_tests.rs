//! Pages of large objects, and what is in memory of them.

use super::*;
use crate::page_limit::{LimitPages, MAX_PAGE};
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    client::{Body, ClientBuilder},
    core::ObjectList,
};
use std::{
    convert::Infallible,
    pin::pin,
    sync::{Arc, Mutex},
};

const MIB: usize = 1 << 20;

/// The sizes of the pages that were asked for, in order; 0 for a stream.
type Asked = Arc<Mutex<Vec<usize>>>;

/// The value of a parameter of a request, or 0.
fn parameter(request: &Request<Body>, name: &str) -> usize {
    let query = request.uri().query().unwrap_or_default();
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name));
    value.map_or(0, |value| value.parse().unwrap())
}

/// A ConfigMap of this size.
fn config_map(number: usize, size: usize) -> String {
    let data = "x".repeat(size);
    format!(r#"{{"metadata":{{"name":"c{number}","resourceVersion":"1"}},"data":{{"x":"{data}"}}}}"#)
}

/// The list of ConfigMaps of these sizes as a stream.
fn stream(sizes: &[usize]) -> String {
    let objects = sizes.iter().enumerate().map(|(number, size)| config_map(number, *size));
    let added = objects.map(|object| format!(r#"{{"type":"ADDED","object":{object}}}"#));
    let end = concat!(
        r#"{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"9","#,
        r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
    );
    let lines: Vec<String> = added.chain([end.into()]).collect();
    lines.join("\n") + "\n"
}

/// A page of ConfigMaps of these sizes. The token for the rest of the list is the number of the objects before.
fn page(request: &Request<Body>, sizes: &[usize]) -> String {
    let (start, limit) = (parameter(request, "continue="), parameter(request, "limit="));
    let end = sizes.len().min(start + limit);
    let items: Vec<String> = (start..end).map(|number| config_map(number, sizes[number])).collect();
    let token = if end < sizes.len() {
        end.to_string()
    } else {
        String::new()
    };
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMapList","metadata":{{"resourceVersion":"9","continue":"{token}"}},"items":[{}]}}"#,
        items.join(",")
    )
}

/// A client of an API server with ConfigMaps of these sizes, the pages of which are limited.
fn client_with(sizes: Vec<usize>, can_stream: bool) -> (Client, Asked) {
    client_answered(move |request, is_watch| match (is_watch, can_stream) {
        (false, _) => (200, page(request, &sizes)),
        (true, true) => (200, stream(&sizes)),
        (true, false) => (422, r#"{"kind":"Status","code":422}"#.to_owned()),
    })
}

/// A client of an API server that answers a request like this. It also gets whether the request is for a watch.
fn client_answered(answer: impl Fn(&Request<Body>, bool) -> (u16, String) + Send + 'static) -> (Client, Asked) {
    let asked = Asked::default();
    let recorded = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        recorded.lock().unwrap().push(parameter(&request, "limit="));
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let (code, text) = answer(&request, is_watch);
        let mut answer = Response::new(Body::from(text.into_bytes()));
        *answer.status_mut() = StatusCode::from_u16(code).unwrap();
        async move { Ok::<_, Infallible>(answer) }
    });
    let client = ClientBuilder::new(service, "default").with_layer(&LimitPages).build();
    (client, asked)
}

/// The names in the first list of a watch.
async fn watch_names(client: Client) -> Vec<String> {
    let api: Api<Watched<ConfigMap>> = Api::all(client);
    let mut events = pin!(watch(api, watcher::Config::default()));
    let mut names = Vec::new();
    loop {
        match events.next().await {
            Some(Ok(Event::Init)) => names.clear(),
            Some(Ok(Event::InitApply(object))) => names.push(object.name_any()),
            Some(Ok(Event::InitDone)) => return names,
            other => panic!("{other:?}"),
        }
    }
}

async fn list_names(client: Client) -> Vec<String> {
    let api: Api<Watched<ConfigMap>> = Api::all(client);
    let mut names = Vec::new();
    let listed = for_each(&api, ListParams::default(), |object| {
        names.push(object.readable().unwrap().name_any());
    });
    listed.await.unwrap();
    names
}

#[tokio::test]
async fn pages_become_smaller_where_objects_are_large_and_larger_again() {
    let few_large = [vec![2 * MIB; 3], vec![10; 100]].concat();
    for (sizes, expected) in [
        (vec![10; 60], vec![50, 50]),
        (vec![MIB; 10], vec![50, 25, 12, 6, 3, 3, 6, 3, 3]),
        // Each needs a page of its own, which has no limit.
        (vec![MAX_PAGE; 2], vec![50, 25, 12, 6, 3, 1, 1]),
        (few_large, vec![50, 25, 12, 6, 3, 1, 1, 2, 4, 8, 16, 32, 50]),
    ] {
        let (client, asked) = client_with(sizes.clone(), true);
        assert_eq!(list_names(client).await, names_of(&sizes));
        assert_eq!(*asked.lock().unwrap(), expected);
    }
}

/// The names of ConfigMaps of these sizes.
fn names_of(sizes: &[usize]) -> Vec<String> {
    (0..sizes.len()).map(|number| format!("c{number}")).collect()
}

#[tokio::test]
async fn instead_of_tiny_pages_a_watch_gets_a_stream() {
    for (sizes, can_stream, expected) in [
        (vec![10; 60], true, vec![50, 50]),
        (vec![100_000; 100], true, vec![50, 25, 25, 25, 25]),
        (vec![MIB; 10], true, vec![50, 25, 12, 6, 0]),
        (vec![MAX_PAGE; 2], true, vec![50, 25, 12, 6, 0]),
        (vec![MIB; 10], false, vec![50, 25, 12, 6, 0, 3, 3, 3, 3]),
        (vec![MAX_PAGE; 2], false, vec![50, 25, 12, 6, 0, 3, 1, 1]),
    ] {
        let (client, asked) = client_with(sizes.clone(), can_stream);
        assert_eq!(watch_names(client).await, names_of(&sizes));
        assert_eq!(*asked.lock().unwrap(), expected);
    }
}

#[tokio::test]
async fn a_list_whose_token_has_expired_becomes_a_stream() {
    let sizes = vec![10; 60];
    let of_server = sizes.clone();
    let (client, asked) = client_answered(move |request, is_watch| match parameter(request, "continue=") {
        _ if is_watch => (200, stream(&of_server)),
        0 => (200, page(request, &of_server)),
        _ => (410, r#"{"kind":"Status","code":410}"#.to_owned()),
    });
    assert_eq!(watch_names(client).await, names_of(&sizes));
    assert_eq!(*asked.lock().unwrap(), [50, 50, 0]);
}

/// What must not be parsed.
#[derive(Clone, Debug)]
struct Untouched;

impl<'de> Deserialize<'de> for Untouched {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("it is parsed before its turn")
    }
}

fn list(item: &str, count: usize) -> String {
    let items = vec![item; count].join(",");
    format!(r#"{{"apiVersion":"v1","kind":"PodList","metadata":{{"resourceVersion":"9"}},"items":[{items}]}}"#)
}

#[test]
fn a_page_is_in_memory_as_text() {
    let text = list(r#"{"metadata":{"name":"a"}}"#, 50);
    let page: ObjectList<Watched<Untouched>> = serde_json::from_str(&text).unwrap();
    assert_eq!(page.items.len(), 50);
}

#[test]
fn managed_fields_are_no_part_of_it() {
    let fields: Vec<String> = (0..5000)
        .map(|number| format!(r#""k:{{\"name\":\"v{number}\"}}":{{}}"#))
        .collect();
    let managed = format!(
        r#"[{{"manager":"x","operation":"Apply","apiVersion":"v1","fieldsV1":{{{}}}}}]"#,
        fields.join(",")
    );
    let pod = format!(r#"{{"metadata":{{"name":"a","managedFields":{managed}}},"spec":{{"containers":[]}}}}"#);
    let page: ObjectList<Watched<Pod>> = serde_json::from_str(&list(&pod, 50)).unwrap();
    let bytes: usize = page.items.iter().map(|pod| pod.text.len()).sum();
    assert!(bytes < 50 * 100, "{bytes}");
    let read = page.items.into_iter().next().unwrap().readable().unwrap();
    assert_eq!((read.name_any().as_str(), read.metadata.managed_fields), ("a", None));
}
