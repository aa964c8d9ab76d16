//! Answers of API servers: how long those may be that others fill, as a tenant serves part of its API by itself, and their time.

mod line;

use self::line::{Line, MAX_AROUND};
use crate::{
    long_answers::{LongAnswers, Place, TooSlow},
    tree::Tree,
};
use http::{Request, Response, Uri};
use http_body_util::{LengthLimitError, Limited};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use kube::client::Body;
use std::{
    error::Error,
    future::Future,
    iter,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Sleep, sleep};
use tower::{BoxError, Layer, Service};

/// Bytes of an answer that are read, or of a line of a watch. One object has at most 1.5 MiB in etcd, which JSON makes six times as long if
/// all of its characters are escaped, and lists are read in pages.
pub const MAX_ANSWER: usize = 16 << 20;
/// Memory that an answer may take as a tree. A definition of 1.5 MiB that has nothing but the shortest fields of a schema takes as much, and so
/// does a page of 100 objects with 700 maps and 700 fields each; pods have a third of that. Without it, 16 MiB of small objects would become more
/// than control may have.
pub const MAX_TREE: u64 = 64 << 20;

/// Memory of an answer that needs no place among [`LongAnswers`]: what control reads of an object, and of a small page.
const SHORT: u64 = 1 << 20;
/// For how many milliseconds an answer of [`MAX_TREE`] keeps its place after its end, and others in proportion. The client parses it just then, which
/// takes a tenth of this time.
const PARSE_MILLISECONDS: u64 = 1000;

/// How long a watch lasts at least: a client begins the next one at once.
const MIN_WATCH: Duration = Duration::from_secs(1);
/// Wait before each further page of a list: there may be no end of pages without objects.
const PAGE_WAIT: Duration = Duration::from_millis(20);

/// The only path whose answer may be longer. The API server itself serves it, and it is read line by line.
const METRICS: &str = "/metrics";

/// The time of the server, in whole seconds, from the header `Date` of an answer. `None` if there is none that can be read.
pub fn read_time<B>(answer: &Response<B>) -> Option<Timestamp> {
    let date = answer.headers().get(http::header::DATE)?;
    DateTimeParser::new().parse_timestamp(date.to_str().ok()?).ok()
}

/// An answer was not read, as its tree would be larger than [`MAX_TREE`].
#[derive(Debug, thiserror::Error)]
#[error("the answer has more structure than {} MiB of memory hold", MAX_TREE >> 20)]
struct TooLarge;

/// A watch was ended because of a line that is too long.
#[derive(Debug, thiserror::Error)]
#[error("a line of the watch has more than {} MiB, or more than {} KiB besides its object", MAX_ANSWER >> 20, MAX_AROUND >> 10)]
struct LongLine;

/// Whether an answer was not read because it is too long, would take too much memory, or would take it for too long.
pub fn is_too_long(error: &(dyn Error + 'static)) -> bool {
    iter::successors(Some(error), |&error| error.source()).any(|error| {
        error.is::<LengthLimitError>() || error.is::<TooLarge>() || error.is::<LongLine>() || error.is::<TooSlow>()
    })
}

/// The parameters of a request.
pub(crate) fn parameters(uri: &Uri) -> impl Iterator<Item = &str> {
    uri.query().unwrap_or_default().split('&')
}

/// Whether a request is for a watch.
pub(crate) fn is_watch(uri: &Uri) -> bool {
    parameters(uri).any(|one| matches!(one, "watch=true" | "watch=1"))
}

/// Ends answers with an error after [`MAX_ANSWER`] bytes, or when they would take more memory than [`MAX_TREE`]. The client collects an answer,
/// also that of an error, before it looks at it. A watch has no end: it ends with an error after a line of as many bytes, and lasts a second at
/// least.
#[derive(Clone, Copy, Debug)]
pub struct LimitAnswers;

impl<S> Layer<S> for LimitAnswers {
    type Service = Limit<S>;

    fn layer(&self, inner: S) -> Limit<S> {
        Limit { inner, long: None }
    }
}

/// The same, and few of the answers are long at the same time, of all clients with the same places. Watches need no place: who shares places has none.
impl<S> Layer<S> for LongAnswers {
    type Service = Limit<S>;

    fn layer(&self, inner: S) -> Limit<S> {
        Limit {
            inner,
            long: Some(self.clone()),
        }
    }
}

/// A client whose answers are limited.
#[derive(Clone, Debug)]
pub struct Limit<S> {
    inner: S,
    long: Option<LongAnswers>,
}

impl<S, B> Service<Request<Body>> for Limit<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<LimitedAnswer<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_json = request.uri().path() != METRICS;
        let is_watch = is_watch(request.uri());
        let is_further_page = parameters(request.uri()).any(|one| one.starts_with("continue="));
        let place = self.long.as_ref().map(LongAnswers::place);
        let answer = self.inner.call(request);
        Box::pin(async move {
            if is_further_page {
                sleep(PAGE_WAIT).await;
            }
            let answer = answer.await?;
            let (limit, content) = if is_watch && answer.status().is_success() {
                (usize::MAX, Content::Watch(Box::new(Watch::begin())))
            } else if is_json {
                let tree = Tree::default();
                (MAX_ANSWER, Content::Json(Json { tree, place }))
            } else {
                (usize::MAX, Content::Text)
            };
            Ok(answer.map(|body| LimitedAnswer {
                inner: Limited::new(body, limit),
                content,
            }))
        })
    }
}

/// The body of an answer.
#[derive(Debug)]
pub struct LimitedAnswer<B> {
    inner: Limited<B>,
    content: Content,
}

/// What an answer is, and what was read of it.
#[derive(Debug)]
enum Content {
    Text,
    Json(Json),
    Watch(Box<Watch>),
}

impl Content {
    /// Counts the next part of the answer.
    fn read(&mut self, part: &[u8]) -> Result<(), BoxError> {
        match self {
            Self::Text => {}
            Self::Json(json) => {
                json.tree.read(part);
                if json.tree.bytes() > MAX_TREE {
                    return Err(TooLarge.into());
                }
            }
            Self::Watch(watch) => {
                if !watch.line.read(part) {
                    return Err(LongLine.into());
                }
            }
        }
        Ok(())
    }
}

/// A part of an answer; none at its end.
type Part = Option<Result<Frame<Bytes>, BoxError>>;

/// What was read of an answer that is no watch.
#[derive(Debug)]
struct Json {
    tree: Tree,
    /// Its place among those that are long, if these are few.
    place: Option<Place>,
}

impl Json {
    /// Waits until more of the answer may be read. An error if it is long and takes too long.
    fn poll_place(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TooSlow>> {
        let is_long = self.tree.bytes() > SHORT;
        match self.place.as_mut().filter(|_| is_long) {
            Some(place) => place.poll(context).map_ok(|_| ()),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Leaves the place to others once the answer, which has ended, is parsed. It needs none any more, even if it is polled again.
    fn end(&mut self) {
        if let Some(mut place) = self.place.take() {
            let milliseconds = self.tree.bytes() / (MAX_TREE / PARSE_MILLISECONDS);
            place.give_back(Duration::from_millis(milliseconds));
        }
    }
}

/// What was read of a watch.
#[derive(Debug)]
struct Watch {
    line: Line,
    /// Until when it lasts at least.
    least: Pin<Box<Sleep>>,
    /// How it has ended, before that.
    end: Option<Part>,
}

impl Watch {
    fn begin() -> Self {
        Self {
            line: Line::default(),
            least: Box::pin(sleep(MIN_WATCH)),
            end: None,
        }
    }

    /// Keeps an end back until it may come.
    fn poll_end(&mut self, end: Part, context: &mut Context<'_>) -> Poll<Part> {
        if self.least.as_mut().poll(context).is_pending() {
            self.end = Some(end);
            return Poll::Pending;
        }
        Poll::Ready(end)
    }
}

impl<B> HttpBody for LimitedAnswer<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let ended = match &mut this.content {
            Content::Watch(watch) => watch.end.take(),
            Content::Json(json) => match ready!(json.poll_place(context)) {
                Ok(()) => None,
                Err(error) => Some(Some(Err(error.into()))),
            },
            Content::Text => None,
        };
        let part = match ended {
            Some(end) => end,
            None => ready!(Pin::new(&mut this.inner).poll_frame(context)),
        };
        if let Some(Ok(frame)) = &part {
            let read = frame.data_ref().map_or(Ok(()), |data| this.content.read(data));
            return Poll::Ready(read.map_or_else(|error| Some(Err(error)), |()| part));
        }
        match &mut this.content {
            Content::Watch(watch) => watch.poll_end(part, context),
            Content::Json(json) => {
                if part.is_none() {
                    json.end();
                }
                Poll::Ready(part)
            }
            Content::Text => Poll::Ready(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client;
    use http_body_util::BodyExt;
    use kube::{
        Api,
        api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
        client::ClientBuilder,
    };
    use std::convert::Infallible;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    /// A server whose answers are this byte without end, with this status; also what a client of it is made from.
    async fn endless(status: &'static str, byte: u8) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, status, byte));
            }
        });
        format!(
            "{{apiVersion: v1, kind: Config, clusters: [{{name: a, cluster: {{server: 'http://{address}'}}}}], users: [{{name: a, user: {{}}}}], \
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}], current-context: a}}"
        )
    }

    async fn answer(mut stream: TcpStream, status: &str, byte: u8) {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await;
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\n\r\n");
        let _ = stream.write_all(head.as_bytes()).await;
        let part = vec![byte; 1 << 16];
        // The client hangs up.
        while stream.write_all(&part).await.is_ok() {}
    }

    async fn read(status: &'static str, byte: u8, path: &str) -> kube::Error {
        let long = LongAnswers::new(1, Duration::from_mins(1));
        let client = client::for_tenant(&endless(status, byte).await, &long).await.unwrap();
        let request = Request::get(path).body(Vec::new()).unwrap();
        let answer = tokio::time::timeout(Duration::from_mins(1), client.request_text(request)).await;
        answer.expect("reading ends").unwrap_err()
    }

    #[tokio::test]
    async fn an_answer_without_end_is_an_error() {
        crate::install_crypto();
        for status in ["200 OK", "500 Internal Server Error"] {
            for (byte, message) in [(b' ', "length limit exceeded"), (b'[', "more structure than 64 MiB")] {
                let error = read(status, byte, "/apis/evil.example.com/v1").await;
                assert!(error.to_string().contains(message), "{status}: {error}");
                assert!(is_too_long(&error), "{status}: {error:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_watch_whose_line_does_not_end_is_an_error() {
        crate::install_crypto();
        for status in ["200 OK", "500 Internal Server Error"] {
            let config = client::config_from_text(&endless(status, b' ').await).await.unwrap();
            let client = client::from_config_of_tenant(config).unwrap();
            for watch in ["watch=true", "limit=1&watch=1"] {
                let request = Request::get(format!("/apis/evil.example.com/v1/evils?{watch}"));
                let answer = client.send(request.body(Body::empty()).unwrap()).await.unwrap();
                let read = tokio::time::timeout(Duration::from_mins(1), answer.into_body().collect()).await;
                let error = read.expect("reading ends").unwrap_err();
                assert!(is_too_long(&error), "{status}: {error:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watches_that_end_and_further_pages_take_time() {
        const LINE: &str = "{\"type\":\"ADDED\",\"object\":{}}\n";
        for (query, least) in [
            ("watch=true", MIN_WATCH),
            ("limit=10&continue=a", PAGE_WAIT),
            ("limit=10", Duration::ZERO),
        ] {
            let service = tower::service_fn(|_: Request<Body>| async {
                Ok::<_, Infallible>(Response::new(Body::from(LINE.as_bytes().to_vec())))
            });
            let client = ClientBuilder::new(service, "default").with_layer(&LimitAnswers).build();
            let request = Request::get(format!("/?{query}")).body(Body::empty()).unwrap();
            let start = tokio::time::Instant::now();
            let answer = client.send(request).await.unwrap().into_body().collect().await;
            assert_eq!(answer.unwrap().to_bytes(), LINE, "{query}");
            let took = start.elapsed();
            assert!((least..least + PAGE_WAIT).contains(&took), "{query}: {took:?}");
        }
    }

    /// What a client of a tenant says of an answer.
    async fn list(text: String) -> Result<usize, kube::Error> {
        let service = tower::service_fn(move |_: Request<Body>| {
            let answer = Response::new(Body::from(text.clone().into_bytes()));
            async move { Ok::<_, Infallible>(answer) }
        });
        let client = ClientBuilder::new(service, "default").with_layer(&LimitAnswers).build();
        let kind = GroupVersionKind::gvk("a.example", "v1", "A");
        let objects: Api<DynamicObject> = Api::all_with(client, &ApiResource::from_gvk(&kind));
        let found = objects.list_metadata(&ListParams::default()).await;
        found.map(|found| found.items.len())
    }

    fn items(item: &str, count: usize) -> String {
        let items = vec![item; count].join(",");
        format!(r#"{{"apiVersion":"a.example/v1","kind":"AList","metadata":{{}},"items":[{items}]}}"#)
    }

    #[tokio::test]
    async fn answers_that_would_take_much_memory_are_errors() {
        for item in ["{}", r#"{"a":[0,0,0]}"#, r#"{"metadata":{"labels":{"a":"b"}}}"#] {
            let text = items(item, 200_000);
            assert!(text.len() < MAX_ANSWER, "{item}");
            let error = list(text).await.unwrap_err();
            assert!(is_too_long(&error), "{item}: {error}");
        }
        let causes = format!(
            r#"{{"kind":"Status","code":422,"details":{{"causes":[{}{{}}]}}}}"#,
            "{},".repeat(200_000)
        );
        assert!(is_too_long(&list(causes).await.unwrap_err()));
    }

    #[tokio::test]
    async fn answers_of_honest_servers_are_read() {
        // A page of objects with much in them, and some that hold configuration as text.
        let fields: Vec<String> = (0..400)
            .map(|number| format!(r#""field{number}":{{"type":"string"}}"#))
            .collect();
        let large = format!(r#"{{"metadata":{{"name":"a"}},"spec":{{{}}}}}"#, fields.join(","));
        assert_eq!(list(items(&large, 100)).await.unwrap(), 100);
        let text = r#"{\"a\":[1,2,3],"#.repeat(50_000);
        let configuration = format!(r#"{{"metadata":{{"name":"a"}},"data":{{"a":"{text}"}}}}"#);
        assert_eq!(list(items(&configuration, 10)).await.unwrap(), 10);
    }
}
