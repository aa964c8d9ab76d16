//! Answers of API servers, changed so that clients can read all that Kubernetes stores.
//!
//! Kubernetes stores what the types of this client do not hold: times at the end of the year 9999 and beyond, which anybody may write into
//! `metadata.managedFields` of what they may change, JSON that is nested more than 128 times, and in raw values such as the parameters of a
//! device, text that is no Unicode. One such object makes the list with it fail, and the answer to a change that was made look like an error.
//! So times become the last one that can be read, what is nested too deep becomes empty, and what is no character becomes another one. Nothing
//! is kept of an answer but a few bytes: watches pass, too.

use http::{Request, Response, header::CONTENT_TYPE};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use jiff::Timestamp;
use kube::client::Body;
use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tower::{Layer, Service};

/// How deep what is left is nested, less one. The parser reads 127 levels, and an object of a list is two levels down.
const MAX_DEPTH: usize = 120;
/// Bytes of the longest name of a field of which the value is a time, or of a time, and some more.
const MAX_SHORT: usize = 40;
/// Bytes of the shortest time.
const MIN_TIME: usize = "2026-01-01T00:00:00Z".len();
/// The last second that can be read.
const LATEST: &str = "9999-12-30T22:00:00Z";
/// What takes the place of times before the year 0.
const EARLIEST: &str = "0000-01-01T00:00:00Z";

/// Fields of Kubernetes' types whose values are times, besides those with [`TIME_ENDINGS`].
const TIMES: [&[u8]; 4] = [b"time", b"timeAdded", b"notBefore", b"notAfter"];
/// How the names of other such fields end.
const TIME_ENDINGS: [&[u8]; 3] = [b"Time", b"Timestamp", b"At"];

/// Makes answers readable: this much of them. Answers that are no JSON stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CorrectAnswers {
    /// All that clients could not read.
    #[default]
    All,
    /// Nothing but bytes that are no text: for those who read objects one by one and write them elsewhere as they are.
    Bytes,
}

impl<S> Layer<S> for CorrectAnswers {
    type Service = Correct<S>;

    fn layer(&self, inner: S) -> Correct<S> {
        Correct { inner, what: *self }
    }
}

/// A client whose answers are readable.
#[derive(Clone, Debug)]
pub struct Correct<S> {
    inner: S,
    what: CorrectAnswers,
}

impl<S, B> Service<Request<Body>> for Correct<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<Corrected<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let what = self.what;
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            let kind = answer.headers().get(CONTENT_TYPE);
            let is_json = kind.is_none_or(|kind| kind.as_bytes().starts_with(b"application/json"));
            let corrector = is_json.then(|| Corrector {
                what,
                ..Corrector::default()
            });
            Ok(answer.map(|inner| Corrected { inner, corrector }))
        })
    }
}

/// The body of an answer.
#[derive(Debug)]
pub struct Corrected<B> {
    inner: B,
    corrector: Option<Corrector>,
}

impl<B> HttpBody for Corrected<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(context));
        Poll::Ready(match (frame, &mut this.corrector) {
            (Some(Ok(frame)), Some(corrector)) => Some(Ok(match frame.into_data() {
                Ok(data) => Frame::data(Bytes::from(corrector.correct(&data))),
                Err(trailers) => trailers,
            })),
            // JSON that ends within a text is none: what is held back of it does not count.
            (frame, _) => frame,
        })
    }
}

/// Corrects JSON that comes in parts.
#[derive(Debug, Default)]
struct Corrector {
    /// What is changed.
    what: CorrectAnswers,
    /// The beginning of a character whose end is in the next part.
    cut: Vec<u8>,
    /// Objects and lists that are open.
    depth: usize,
    /// Whether the next byte is in a text.
    in_text: bool,
    escape: Escape,
    /// Whether the text has more than [`MAX_SHORT`] bytes: they are passed on as they come.
    is_long: bool,
    /// The text that is being read, or was read last, if it is short.
    text: Vec<u8>,
    /// The name of the field whose value is next, if it is short.
    field: Vec<u8>,
}

/// What the bytes of a text before the next one are.
#[derive(Clone, Copy, Debug, Default)]
enum Escape {
    /// No escape.
    #[default]
    None,
    /// A backslash.
    Begun,
    /// The backslash and the `u` of a number.
    Number,
    /// The same with a `d`, which is not passed on yet: the number may be half of a pair. API servers write characters as they are, so pairs
    /// are in raw values only, and nobody may have written the other half.
    Half(u8),
}

impl Corrector {
    /// What to pass on of the next part.
    fn correct(&mut self, part: &[u8]) -> Vec<u8> {
        let mut bytes = mem::take(&mut self.cut);
        bytes.extend_from_slice(part);
        let mut corrected = Vec::with_capacity(bytes.len());
        let mut rest = bytes.as_slice();
        while let Err(error) = str::from_utf8(rest) {
            let (valid, after) = rest.split_at(error.valid_up_to());
            self.read_all(valid, &mut corrected);
            let Some(length) = error.error_len() else {
                self.cut = after.to_vec();
                return corrected;
            };
            // One byte, so that no answer becomes longer than the limits that it has passed.
            self.read_all(b"?", &mut corrected);
            rest = &after[length..];
        }
        self.read_all(rest, &mut corrected);
        corrected
    }

    fn read_all(&mut self, bytes: &[u8], corrected: &mut Vec<u8>) {
        if self.what == CorrectAnswers::Bytes {
            corrected.extend_from_slice(bytes);
            return;
        }
        for byte in bytes {
            if self.in_text {
                self.read_in_text(*byte, corrected);
            } else {
                self.read(*byte, corrected);
            }
        }
    }

    fn read(&mut self, byte: u8, corrected: &mut Vec<u8>) {
        match byte {
            b'"' => {
                self.in_text = true;
                self.is_long = false;
                self.escape = Escape::None;
                self.text.clear();
            }
            b':' => mem::swap(&mut self.field, &mut self.text),
            b'{' | b'[' | b',' => self.field.clear(),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        // Of what is too deep, the brackets remain.
        self.put(&[byte], corrected);
        if matches!(byte, b'{' | b'[') {
            self.depth += 1;
        }
    }

    fn read_in_text(&mut self, byte: u8, corrected: &mut Vec<u8>) {
        let escape = match (self.escape, byte) {
            (Escape::None, b'"') => {
                self.in_text = false;
                let other = is_time(&self.field).then(|| readable_time(&self.text)).flatten();
                self.put(other.map_or(self.text.as_slice(), str::as_bytes), corrected);
                self.put(b"\"", corrected);
                return;
            }
            (Escape::None, b'\\') => Escape::Begun,
            (Escape::Begun, b'u') => Escape::Number,
            (Escape::Number, b'd' | b'D') => {
                self.escape = Escape::Half(byte);
                return;
            }
            (Escape::Half(digit), _) => {
                let is_half = matches!(byte, b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F');
                self.keep(if is_half { b'f' } else { digit }, corrected);
                Escape::None
            }
            _ => Escape::None,
        };
        self.escape = escape;
        self.keep(byte, corrected);
    }

    /// Adds a byte to the text.
    fn keep(&mut self, byte: u8, corrected: &mut Vec<u8>) {
        if self.is_long {
            self.put(&[byte], corrected);
        } else {
            self.text.push(byte);
            if self.text.len() > MAX_SHORT {
                self.is_long = true;
                self.put(&self.text, corrected);
                self.text.clear();
            }
        }
    }

    /// Passes bytes on, unless they are too deep.
    fn put(&self, bytes: &[u8], corrected: &mut Vec<u8>) {
        if self.depth <= MAX_DEPTH {
            corrected.extend_from_slice(bytes);
        }
    }
}

fn is_time(field: &[u8]) -> bool {
    TIMES.contains(&field) || TIME_ENDINGS.iter().any(|ending| field.ends_with(ending))
}

/// The time that takes the place of one that cannot be read.
fn readable_time(text: &[u8]) -> Option<&'static str> {
    let is_like_time = text.len() >= MIN_TIME
        && text
            .iter()
            .all(|byte| byte.is_ascii_digit() || b"-+:.TZ".contains(byte));
    let text = str::from_utf8(text).ok().filter(|_| is_like_time)?;
    match text.parse::<Timestamp>() {
        Ok(_) => None,
        Err(_) if text.starts_with('-') => Some(EARLIEST),
        Err(_) => Some(LATEST),
    }
}

#[cfg(test)]
mod tests;
