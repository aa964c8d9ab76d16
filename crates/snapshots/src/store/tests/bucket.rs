use super::{LOCATION, entries, source};
use crate::{
    entry::Written,
    error::{ReadError, StoreError, WriteError},
    store::{Store, bucket::PART_BYTES, limits::Limits},
};
use futures::{StreamExt as _, future, poll, stream};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, sink},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::timeout,
};

const KEY_ID: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI";
/// What S3 answers to a wrong signature: it repeats the request with its credentials.
const DENIAL: &str = "<?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>The signature\nof AKIDEXAMPLE is wrong\
    </Message><AWSAccessKeyId>AKIDEXAMPLE</AWSAccessKeyId></Error>";
/// Bytes of a snapshot.
const SIZE: u64 = 100;
/// Half of these.
const HALF: usize = 50;

/// A bucket at an endpoint.
fn bucket(endpoint: &str, limits: Limits) -> Store {
    let options = [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", KEY_ID),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
    ];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Store::with_limits("s3://snapshots/berth", options, limits).unwrap()
}

/// A server that answers each request so, or never.
async fn serve(answer: Option<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                if let Some(answer) = answer {
                    let _ = connection.read(&mut request).await;
                    let _ = connection.write_all(answer.as_bytes()).await;
                    let _ = connection.shutdown().await;
                }
                // The client ends the connection, so that it can read all of the answer.
                while connection.read(&mut request).await.is_ok_and(|read| read > 0) {}
            });
        }
    });
    endpoint
}

#[track_caller]
fn assert_without_credentials(error: &StoreError) {
    let text = format!("{error} {error:?}");
    assert!(!text.contains(KEY_ID) && !text.contains(SECRET), "{text}");
    assert!(!error.to_string().contains('\n'), "{text}");
}

#[tokio::test]
async fn credentials_are_not_shown() {
    let answer = format!(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{DENIAL}",
        DENIAL.len()
    );
    let store = bucket(&serve(Some(answer)).await, Limits::default());
    assert_eq!(format!("{store:?}"), "Store(s3://snapshots/berth)");
    let error = store.delete(LOCATION).await.unwrap_err();
    let expected = "SignatureDoesNotMatch: The signature of (hidden) is wrong";
    assert_eq!(error, StoreError::Denied(expected.to_owned()));
    assert_without_credentials(&error);
    let written = Written {
        objects: 0,
        bytes: 0,
        stored_bytes: 0,
        checksum: String::new(),
    };
    let error = store.verify(LOCATION, &written).await.unwrap_err();
    assert!(matches!(&error, ReadError::Store(StoreError::Denied(_))), "{error}");
    // With one request, and the first part of a larger one.
    for count in [1, 10] {
        let error = store
            .write(LOCATION, source(&entries(count, 1_000_000, 1)))
            .await
            .unwrap_err();
        let WriteError::Store(error) = error else {
            panic!("{error}");
        };
        assert!(matches!(error, StoreError::Denied(_)), "{error}");
        assert_without_credentials(&error);
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_unreachable_in_time() {
    let soon = Duration::from_millis(200);
    let limits = Limits {
        connect: soon,
        request: soon,
        repeat: soon,
        max_repeats: 1,
        total: Duration::from_secs(20),
    };
    let silent = serve(None).await;
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let patient = Limits {
        total: soon,
        ..Limits::default()
    };
    for (endpoint, limits) in [(&silent, limits), (&closed, limits), (&silent, patient)] {
        let store = bucket(endpoint, limits);
        let error = timeout(Duration::from_secs(15), store.delete(LOCATION))
            .await
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
        assert_without_credentials(&error);
    }
    let error = bucket(&silent, patient).delete(LOCATION).await.unwrap_err();
    assert!(
        error.to_string().contains("did not answer within 0.2 seconds"),
        "{error}"
    );
}

/// Limits with which a test waits two seconds for each request: enough for a part.
fn short() -> Limits {
    let soon = Duration::from_secs(2);
    Limits {
        connect: soon,
        request: soon,
        repeat: soon,
        max_repeats: 0,
        total: Duration::from_secs(20),
    }
}

/// A server of uploads that answers so many requests and then takes requests and never answers. Returns the number of its connections.
async fn serve_some_uploads(answered: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let number = counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                if number < answered {
                    take_upload(connection, Arc::default()).await;
                } else {
                    let _ = tokio::io::copy(&mut connection, &mut sink()).await;
                }
            });
        }
    });
    (endpoint, connections)
}

#[tokio::test]
async fn a_store_that_stops_answering_in_the_middle_of_an_upload_is_unreachable_in_time() {
    // The upload is begun, gets its first part, its last one, and is completed.
    for answered in 0..4 {
        let (endpoint, connections) = serve_some_uploads(answered).await;
        let store = bucket(&endpoint, short());
        let many = entries(10, 1_000_000, 1);
        let writing = timeout(Duration::from_secs(30), store.write(LOCATION, source(&many)));
        let error = writing.await.unwrap().unwrap_err();
        let WriteError::Store(error) = error else {
            panic!("{error}");
        };
        assert!(matches!(error, StoreError::Unreachable(_)), "{answered}: {error}");
        assert_without_credentials(&error);
        assert!(connections.load(Ordering::Relaxed) > answered, "{answered}");
    }
}

#[tokio::test]
async fn a_store_that_stops_answering_in_the_middle_of_a_download_is_unreachable_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let is_half_sent = Arc::new(AtomicBool::new(false));
    let sent = is_half_sent.clone();
    tokio::spawn(async move {
        loop {
            let (connection, _) = listener.accept().await.unwrap();
            tokio::spawn(send_half(connection, sent.clone()));
        }
    });
    let written = Written {
        objects: 1,
        bytes: SIZE,
        stored_bytes: SIZE,
        checksum: String::new(),
    };
    let store = bucket(&endpoint, short());
    let reading = timeout(Duration::from_secs(30), store.verify(LOCATION, &written));
    let error = reading.await.unwrap().unwrap_err();
    assert!(matches!(error, ReadError::Store(StoreError::Unreachable(_))), "{error}");
    assert!(is_half_sent.load(Ordering::Relaxed), "{error}");
}

/// Says how large the object is, and sends half of it if all of it is asked for.
async fn send_half(connection: TcpStream, is_half_sent: Arc<AtomicBool>) {
    let mut connection = BufReader::new(connection);
    let (mut head, mut line) = (String::new(), String::new());
    while connection.read_line(&mut line).await.unwrap() > 2 {
        head.push_str(&line.to_lowercase());
        line.clear();
    }
    let range = head
        .lines()
        .find_map(|line| line.strip_prefix("range: bytes="))
        .unwrap();
    let is_all = range != "0-0";
    let length = if is_all { SIZE } else { 1 };
    let answer = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {range}/{SIZE}\r\nContent-Length: {length}\r\nETag: \"a\"\r\n\
         Last-Modified: Mon, 30 Nov 2026 00:00:00 GMT\r\nConnection: close\r\n\r\n"
    );
    let half = [b'a'; HALF];
    let body: &[u8] = if is_all { &half } else { b"a" };
    let _ = connection.write_all(answer.as_bytes()).await;
    let _ = connection.write_all(body).await;
    let _ = connection.flush().await;
    is_half_sent.fetch_or(is_all, Ordering::Relaxed);
    // The rest never comes.
    let _ = tokio::io::copy(&mut connection, &mut sink()).await;
}

/// A server whose answers do not end. Returns what it has sent.
async fn serve_without_end(status: &'static str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let sent = counted.clone();
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                let read = connection.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..read]).to_lowercase();
                let range = request.lines().find_map(|line| line.strip_prefix("range: bytes="));
                let range = range.unwrap_or("0-0").trim();
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Range: bytes {range}/{SIZE}\r\nContent-Length: 1000000000000\r\n\r\n"
                );
                connection.write_all(head.as_bytes()).await.unwrap();
                while let Ok(written) = connection.write(&[b'a'; 1 << 13]).await {
                    sent.fetch_add(written, Ordering::Relaxed);
                }
            });
        }
    });
    (endpoint, sent)
}

#[tokio::test]
async fn answers_without_end_are_not_read() {
    let written = Written {
        objects: 1,
        bytes: SIZE,
        stored_bytes: SIZE,
        checksum: String::new(),
    };
    let limits = Limits {
        max_repeats: 1,
        ..Limits::default()
    };
    for status in ["206 Partial Content", "403 Forbidden", "503 Slow Down"] {
        let (endpoint, sent) = serve_without_end(status).await;
        let error = bucket(&endpoint, limits).verify(LOCATION, &written).await.unwrap_err();
        assert!(matches!(error, ReadError::Store(_)), "{error}");
        assert!(error.to_string().len() < 1000, "{error}");
        // Of two requests at most, a part each, and what sockets hold.
        let sent = sent.load(Ordering::Relaxed);
        assert!(sent < 4 * PART_BYTES, "{status}: {sent}");
    }
}

/// A server that takes uploads of several parts. Returns whether one was given up.
async fn serve_uploads() -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let is_given_up = Arc::new(AtomicBool::new(false));
    let seen = is_given_up.clone();
    tokio::spawn(async move {
        loop {
            let (connection, _) = listener.accept().await.unwrap();
            tokio::spawn(take_upload(connection, seen.clone()));
        }
    });
    (endpoint, is_given_up)
}

async fn take_upload(connection: TcpStream, is_given_up: Arc<AtomicBool>) {
    let mut connection = BufReader::new(connection);
    let (mut head, mut line) = (String::new(), String::new());
    while connection.read_line(&mut line).await.unwrap() > 2 {
        head.push_str(&line.to_lowercase());
        line.clear();
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.map_or(0, |length| length.parse().unwrap());
    tokio::io::copy(&mut (&mut connection).take(length), &mut sink())
        .await
        .unwrap();
    if head.starts_with("delete") {
        is_given_up.store(true, Ordering::Relaxed);
    }
    let body = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>";
    let answer = format!(
        "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(answer.as_bytes()).await.unwrap();
    connection.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_upload_is_given_up_also_if_nobody_waits_for_that() {
    let (endpoint, is_given_up) = serve_uploads().await;
    let store = bucket(&endpoint, Limits::default());
    let is_waiting = AtomicBool::new(false);
    let (fail, failed) = oneshot::channel::<()>();
    let failing = stream::once(async {
        is_waiting.store(true, Ordering::Relaxed);
        failed.await.unwrap();
        Err(io::Error::other("etcd is gone"))
    });
    let many = stream::iter(entries(10, 1_000_000, 1)).map(Ok);
    let mut writing = Box::pin(store.write(LOCATION, many.chain(failing)));
    while !is_waiting.load(Ordering::Relaxed) {
        let turn = Box::pin(tokio::time::sleep(Duration::from_millis(5)));
        let ended = future::select(writing.as_mut(), turn).await;
        assert!(matches!(ended, future::Either::Right(_)), "the source has no end");
    }
    // It has parts, fails, begins to give up, and is dropped.
    fail.send(()).unwrap();
    assert!(poll!(writing.as_mut()).is_pending());
    drop(writing);
    let given_up = async {
        while !is_given_up.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), given_up).await.unwrap();
}
