use super::*;
use crate::testing::{Parts, spawn, time};
use std::convert::Infallible;

/// A bookmark.
const LINE: &str = "{\"type\":\"BOOKMARK\",\"object\":{}}\n";

/// A client of a server whose answer follows from the path.
fn client_of(answer: fn(&str) -> Parts) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| async move {
        Ok::<_, Infallible>(Response::new(answer(request.uri().path())))
    });
    limited(Client::new(service, "default"))
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_says_nothing_ends() {
    let client = client_of(|path| match path {
        "/bookmarks" => Parts::new([(250, LINE), (250, LINE), (250, LINE)], false),
        "/half" => Parts::new([(200, "{\"type\""), (200, ":")], false),
        _ => Parts::new([], false),
    });
    let silence = max_silence().as_secs();
    for (watch, expected) in [
        ("/nothing?watch=true", silence),
        ("/bookmarks?watch=true", 750 + silence),
        ("/half?watch=1", silence),
    ] {
        let (bytes, seconds) = time(&client, watch).await;
        let error = bytes.unwrap_err();
        assert!(is_silent(&error) && !answers::is_too_long(&error), "{watch}: {error}");
        assert_eq!(seconds, expected, "{watch}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_to_which_nobody_answers_ends() {
    let service = tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    let client = limited(Client::new(service, "default"));
    let (bytes, seconds) = time(&client, "/?watch=true").await;
    assert!(is_silent(&bytes.unwrap_err()));
    assert_eq!(seconds, max_silence().as_secs());
}

#[tokio::test(start_paused = true)]
async fn other_answers_and_watches_that_end_may_take_their_time() {
    let client = client_of(|_| Parts::new([(250, LINE), (250, LINE), (40, "")], true));
    for path in ["/watch?watch=true", "/list?limit=1"] {
        let (bytes, seconds) = time(&client, path).await;
        assert_eq!((bytes.unwrap(), seconds), (2 * LINE.len(), 540), "{path}");
    }
}

/// The beginning of something long.
fn long() -> String {
    "x".repeat(SHORT + 1)
}

#[tokio::test(start_paused = true)]
async fn few_answers_are_long_at_the_same_time() {
    let client = client_of(|path| match path {
        "/slow" => Parts::new([(0, long().as_str())], false),
        "/lines" => Parts::new([(0, long().as_str()), (0, "\n"), (0, long().as_str()), (0, "\n")], true),
        _ => Parts::new([(0, LINE)], true),
    });
    // Answers that are no watches take places as well.
    let slow: Vec<_> = (0..PLACES)
        .map(|number| spawn(&client, if number == 0 { "/slow" } else { "/slow?watch=true" }))
        .collect();
    sleep(Duration::from_secs(1)).await;

    let (short, seconds) = time(&client, "/short?watch=true").await;
    assert_eq!((short.unwrap(), seconds), (LINE.len(), 0), "it needs no place");
    let (lines, seconds) = time(&client, "/lines?watch=true").await;
    assert_eq!(lines.unwrap(), 2 * (SHORT + 2), "it got a place, twice");
    assert_eq!(seconds, PLACE_TIME.as_secs() - 1);
    for answer in slow {
        let (bytes, seconds) = answer.await.unwrap();
        let error = bytes.unwrap_err();
        assert!(answers::is_too_long(&error) && !is_silent(&error), "{error}");
        assert_eq!(seconds, PLACE_TIME.as_secs());
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_waits_for_a_place_is_not_silent() {
    let client = client_of(|path| match path {
        "/slow" => Parts::new([(0, long().as_str())], false),
        _ => Parts::new([(290, long().as_str()), (0, "\n")], true),
    });
    let late = spawn(&client, "/late?watch=true");
    // Just before it needs one, others take all places.
    sleep(Duration::from_secs(280)).await;
    let _slow: Vec<_> = (0..PLACES).map(|_| spawn(&client, "/slow?watch=true")).collect();
    let (bytes, seconds) = late.await.unwrap();
    assert_eq!((bytes.unwrap(), seconds), (SHORT + 2, 280 + PLACE_TIME.as_secs()));
}
