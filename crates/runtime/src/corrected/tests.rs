use super::*;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    client::ClientBuilder,
};
use std::{
    convert::Infallible,
    future::{Ready, ready},
};

/// What clients read of an answer that comes in parts of this many bytes.
fn corrected(text: &[u8], size: usize) -> String {
    let mut corrector = Corrector::default();
    let parts = text.chunks(size).flat_map(|part| corrector.correct(part));
    String::from_utf8(parts.collect()).unwrap()
}

/// Checks what is read, wherever the parts are cut.
fn check(text: &[u8], expected: &str) {
    assert!(
        expected.len() <= text.len(),
        "answers have passed their limits when they are corrected"
    );
    for size in [1, 2, 3, 7, 64, 1 << 20] {
        assert_eq!(corrected(text, size), expected, "{size}");
    }
}

fn nested(levels: usize) -> String {
    format!("{}1{}", r#"{"f:a":["#.repeat(levels / 2), "]}".repeat(levels / 2))
}

/// A pod that no type of this client holds.
fn pod(name: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","labels":{{"a":"b"}},"finalizers":["a.b/c"],"managedFields":[{{"time":"9999-12-31T00:00:00Z",
            "fieldsV1":{}}}]}},"spec":{{"containers":[],"terminationGracePeriodSeconds":7}},"status":{{"startTime":"10000-01-01T11:59:59Z"}}}}"#,
        nested(400)
    )
}

#[test]
fn what_can_be_read_stays_as_it_is() {
    for text in [
        r#"{"a":{"time":"2026-01-01T00:00:00Z"},"b":[1,-2.5e3,true,null,"ü\n\"\\","\\ud800 \ud7ff\u00fc 😀"]}"#
            .to_owned(),
        r#"{"startTime":"9999-12-30T22:00:00Z", "renewTime" : "2026-01-01T00:00:00.000001Z"}"#.to_owned(),
        // Other texts may be like that.
        r#"{"annotations":{"until":"9999-12-31T00:00:00Z"},"times":["9999-12-31T00:00:00Z"]}"#.to_owned(),
        r#"{"schedule":{"startTime":"10:30","endTime":"never, as far as anybody can say about such things"}}"#
            .to_owned(),
        nested(100),
        "{\"type\":\"ADDED\"}\n{\"type\":\"BOOKMARK\"}\n".to_owned(),
        "ok".to_owned(),
    ] {
        check(text.as_bytes(), &text);
    }
}

#[test]
fn times_that_cannot_be_read_become_some_that_can() {
    for (late, expected) in [
        ("9999-12-30T22:00:01Z", LATEST),
        ("9999-12-31T23:59:59Z", LATEST),
        ("9999-12-31T23:59:59.999999Z", LATEST),
        ("10000-01-01T11:59:59Z", LATEST),
        ("-0001-12-31T00:01:00Z", EARLIEST),
    ] {
        assert!(late.parse::<Timestamp>().is_err(), "{late}");
        for field in [
            "time",
            "lastTransitionTime",
            "creationTimestamp",
            "finishedAt",
            "timeAdded",
        ] {
            let text = |time: &str| format!(r#"{{"managedFields":[{{"{field}": "{time}","x":"y"}}]}}"#);
            check(text(late).as_bytes(), &text(expected));
        }
    }
    for time in [LATEST, EARLIEST] {
        assert!(time.parse::<Timestamp>().is_ok(), "{time}");
    }
}

#[test]
fn what_is_too_deep_is_empty() {
    let deep = format!(r#"{{"before":1,"deep":{},"after":[2]}}"#, nested(2000));
    let shallow = corrected(deep.as_bytes(), 4096);
    check(deep.as_bytes(), &shallow);
    let read: serde_json::Value = serde_json::from_str(&shallow).unwrap();
    assert_eq!((&read["before"], &read["after"][0]), (&1.into(), &2.into()));
    assert!(serde_json::from_str::<serde_json::Value>(&deep).is_err(), "the attack");
}

#[test]
fn what_is_no_character_is_replaced() {
    let halves = r#"{"a\ud800":"\uDfff\ud83d\ude00"}"#;
    check(halves.as_bytes(), r#"{"a\uf800":"\uffff\uf83d\ufe00"}"#);
    assert!(serde_json::from_str::<serde_json::Value>(halves).is_err(), "the attack");
    assert!(serde_json::from_str::<serde_json::Value>(&corrected(halves.as_bytes(), 5)).is_ok());
    check(b"{\"a\xff\":\"\xe2\x82\xac \xe2\x82\"}", "{\"a?\":\"€ ?\"}");
}

/// A client of an API server that answers every request with this.
fn client(what: CorrectAnswers, answer: Vec<u8>) -> Client {
    ClientBuilder::new(Fixed(answer), "default").with_layer(&what).build()
}

/// An API server that answers every request with this.
struct Fixed(Vec<u8>);

impl Service<Request<Body>> for Fixed {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(Body::from(self.0.clone()))))
    }
}

#[tokio::test]
async fn those_who_write_objects_elsewhere_read_them_as_they_are() {
    let text = [pod("a").into_bytes(), b"\xff".to_vec()].concat();
    let request = || Request::get("/").body(Vec::new()).unwrap();
    let read = client(CorrectAnswers::Bytes, text.clone())
        .request_text(request())
        .await;
    assert_eq!(read.unwrap(), format!("{}?", pod("a")));
    let read = client(CorrectAnswers::All, text).request_text(request()).await;
    assert!(!read.unwrap().contains("9999-12-31"));
}

#[tokio::test]
async fn clients_read_lists_objects_and_answers_to_changes() {
    let list = format!(
        r#"{{"apiVersion":"v1","kind":"PodList","metadata":{{}},"items":[{},{}]}}"#,
        pod("a"),
        pod("b")
    );
    let pods: Api<Pod> = Api::default_namespaced(client(CorrectAnswers::All, list.into_bytes()));
    let all = pods.list(&ListParams::default()).await.unwrap();
    let names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["a", "b"]);
    let spec = all.items[1].spec.as_ref().unwrap();
    assert_eq!(spec.termination_grace_period_seconds, Some(7));
    assert_eq!(pods.list_metadata(&ListParams::default()).await.unwrap().items.len(), 2);
    let deleted = pods
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await;
    assert!(deleted.unwrap().is_left());
    let pods: Api<Pod> = Api::default_namespaced(client(CorrectAnswers::All, pod("a").into_bytes()));
    let pod = pods.get("a").await.unwrap();
    assert_eq!(
        (pod.labels()["a"].as_str(), pod.finalizers()),
        ("b", &["a.b/c".to_owned()][..])
    );
    assert!(pods.delete("a", &DeleteParams::default()).await.unwrap().is_left());
    let patch = Patch::Merge(serde_json::json!({}));
    pods.patch("a", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn logs_stay_as_they_are() {
    const LOG: &str = "[[\"time\":\"9999-12-31T00:00:00Z\" \"";
    let service = tower::service_fn(|_: Request<Body>| async {
        let answer = Response::builder().header(CONTENT_TYPE, "text/plain");
        Ok::<_, Infallible>(answer.body(Body::from(LOG.as_bytes().to_vec())).unwrap())
    });
    let client = ClientBuilder::new(service, "default")
        .with_layer(&CorrectAnswers::All)
        .build();
    let request = Request::get("/log").body(Vec::new()).unwrap();
    assert_eq!(client.request_text(request).await.unwrap(), LOG);
}
