use super::*;
use crate::{
    answers,
    testing::{Parts, spawn, time},
};
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::{
    Client,
    client::{Body, ClientBuilder},
};
use std::convert::Infallible;

const PLACES: usize = 3;
const TIME: Duration = Duration::from_secs(5);

/// A part that would take more than a MiB as a tree.
fn part() -> String {
    "{".repeat(1500)
}

/// Bytes of the answer `/long`.
fn length() -> usize {
    3 * part().len()
}

/// A client of one of several tenants, whose answer `/long` takes two seconds, and `/slow` too long.
fn client_of_tenant(long: &LongAnswers) -> Client {
    let answer = |path: &str| {
        let part = part();
        let part = part.as_str();
        match path {
            "/long" => Parts::new([(0, part), (1, part), (1, part)], true),
            "/slow" => Parts::new([(0, part), (3, " "), (3, " ")], true),
            // Nearly as much as an answer may take.
            "/longest" => Parts::new([(0, part.repeat(60).as_str())], true),
            _ => Parts::new([(0, "{}")], true),
        }
    };
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer(request.uri().path());
        async move { Ok::<_, Infallible>(Response::new(answer)) }
    });
    ClientBuilder::new(service, "default").with_layer(long).build()
}

#[tokio::test(start_paused = true)]
async fn of_all_tenants_few_answers_are_long_at_the_same_time_and_short_ones_wait_for_none() {
    let long = LongAnswers::new(PLACES, TIME);
    let clients: Vec<Client> = (0..9).map(|_| client_of_tenant(&long)).collect();
    let answers: Vec<_> = clients.iter().map(|client| spawn(client, "/long")).collect();
    sleep(Duration::from_secs(1)).await;
    let (short, seconds) = time(&clients[8], "/short").await;
    assert_eq!((short.unwrap(), seconds), (2, 0));
    let mut took = Vec::new();
    for answer in answers {
        let (bytes, seconds) = answer.await.unwrap();
        assert_eq!(bytes.unwrap(), length());
        took.push(seconds);
    }
    took.sort_unstable();
    assert_eq!(took, [2, 2, 2, 4, 4, 4, 6, 6, 6]);
}

#[tokio::test(start_paused = true)]
async fn a_long_answer_that_comes_slowly_ends_and_leaves_its_place() {
    let client = client_of_tenant(&LongAnswers::new(PLACES, TIME));
    let slow: Vec<_> = (0..PLACES).map(|_| spawn(&client, "/slow")).collect();
    sleep(Duration::from_secs(1)).await;
    let (bytes, seconds) = time(&client, "/long").await;
    assert_eq!((bytes.unwrap(), seconds), (length(), TIME.as_secs() - 1 + 2));
    for answer in slow {
        let (bytes, seconds) = answer.await.unwrap();
        let error = bytes.unwrap_err();
        assert!(answers::is_too_long(&error), "{error}");
        assert_eq!(seconds, TIME.as_secs());
    }
}

/// As in a stream of futures, of which one is worked on while the others wait.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_read_no_further_loses_its_place() {
    let client = client_of_tenant(&LongAnswers::new(1, TIME));
    let request = Request::get("/long").body(Body::empty()).unwrap();
    let mut kept = client.send(request).await.unwrap().into_body();
    for _ in 0..2 {
        kept.frame().await.unwrap().unwrap();
    }
    // It has its place for a second.
    let (bytes, seconds) = time(&client, "/long").await;
    assert_eq!((bytes.unwrap(), seconds), (length(), TIME.as_secs() - 1 + 2));
    let error = kept.frame().await.unwrap().unwrap_err();
    assert!(answers::is_too_long(&error), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_has_its_place_until_it_is_parsed() {
    let client = client_of_tenant(&LongAnswers::new(1, TIME));
    let (bytes, seconds) = time(&client, "/longest").await;
    assert_eq!((bytes.unwrap(), seconds), (60 * part().len(), 0));
    let (bytes, seconds) = time(&client, "/long").await;
    assert_eq!((bytes.unwrap(), seconds), (length(), 1 + 2));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_place_and_is_given_up_takes_none() {
    let client = client_of_tenant(&LongAnswers::new(1, TIME));
    let slow = spawn(&client, "/slow");
    sleep(Duration::from_secs(1)).await;
    assert!(timeout(Duration::from_secs(1), time(&client, "/long")).await.is_err());
    // One that is given up with its place leaves it at once.
    slow.abort();
    let (bytes, seconds) = time(&client, "/long").await;
    assert_eq!((bytes.unwrap(), seconds), (length(), 2));
}
