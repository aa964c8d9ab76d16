//! Answers about kinds that a tenant may serve by servers of its own, besides the [limits of a single answer](crate::answers): how many of them
//! may be long at the same time, and for how long a watch may say nothing.
//!
//! A syncer has a watch for each of dozens of such kinds, and a server can leave each of them within a line of 16 MiB for ever. So a line, or an
//! answer that is no watch, that becomes long takes one of few places. The others are not read on until a place is free, and who has one must
//! come to an end.

use crate::{
    answers,
    long_answers::{LongAnswers, Place, TooSlow},
};
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use kube::{Client, client::Body};
use std::{
    error::Error,
    iter,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tower::BoxError;

/// Bytes of an answer, or of a line of a watch, that need no place. Most objects have less.
const SHORT: usize = 256 << 10;
/// Longer ones that are read at the same time: 64 MiB with the longest.
const PLACES: usize = 4;
/// How long one of them may have its place. The longest takes a second at 16 MiB/s.
const PLACE_TIME: Duration = Duration::from_secs(30);

/// Seconds after which a server is asked to end a watch: what kube asks for by default.
pub const WATCH_SECONDS: u32 = 290;
/// How long after that a watch may say nothing. kube waits for 5 s, and then goes on with a new watch from where the old one was: what a server
/// has left out stays unknown.
const MARGIN: Duration = Duration::from_secs(3);

/// How long a watch may bring neither an event nor a bookmark. API servers send a bookmark about once a minute, and end a watch after
/// [`WATCH_SECONDS`]; who does neither is listed again.
pub fn max_silence() -> Duration {
    Duration::from_secs(WATCH_SECONDS.into()) + MARGIN
}

/// A watch was ended because it says nothing.
#[derive(Debug, thiserror::Error)]
#[error("the watch has brought nothing for {} s, and has not ended", max_silence().as_secs())]
struct Silent;

/// Whether a watch was ended because it says nothing: what there is must be listed again.
pub fn is_silent(error: &(dyn Error + 'static)) -> bool {
    iter::successors(Some(error), |&error| error.source()).any(<dyn Error>::is::<Silent>)
}

/// The same client for kinds that a tenant may serve by servers of its own. Of its answers, also through its clones, few are long at the same
/// time. One that is long and too slow ends with an error for which [`answers::is_too_long`] is true, and a watch that says nothing with one for
/// which [`is_silent`] is.
pub fn limited(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let long = LongAnswers::new(PLACES, PLACE_TIME);
    let service = tower::service_fn(move |request: Request<Body>| ask(client.clone(), request, long.place()));
    Client::new(service, namespace)
}

/// Asks, and reads the answer within the limits. An error if there is no answer.
async fn ask(client: Client, request: Request<Body>, place: Place) -> Result<Response<ExtensionAnswer>, BoxError> {
    let is_watch = answers::is_watch(request.uri());
    let answer = client.send(request);
    let answer = if is_watch {
        // A server may accept a watch and say nothing at all.
        timeout(max_silence(), answer).await.map_err(|_| Silent)??
    } else {
        answer.await?
    };
    let is_watch = is_watch && answer.status().is_success();
    Ok(answer.map(|inner| ExtensionAnswer {
        inner,
        place,
        bytes: 0,
        silence: is_watch.then(|| Box::pin(sleep(max_silence()))),
        has_failed: false,
    }))
}

/// The body of an answer.
struct ExtensionAnswer {
    inner: Body,
    place: Place,
    /// Bytes of the line of a watch, or of the whole answer, so far.
    bytes: usize,
    /// When a watch has said nothing for too long; none for other answers.
    silence: Option<Pin<Box<Sleep>>>,
    has_failed: bool,
}

/// A part of an answer; none at its end.
type Part = Option<Result<Frame<Bytes>, BoxError>>;

impl ExtensionAnswer {
    /// Waits for a place if one is needed. An error if the answer has had one for too long.
    fn poll_place(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TooSlow>> {
        if self.bytes <= SHORT {
            return Poll::Ready(Ok(()));
        }
        if ready!(self.place.poll(context))? {
            // Nobody has listened meanwhile.
            self.renew();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Part> {
        if let Err(error) = ready!(self.poll_place(context)) {
            return Poll::Ready(Some(Err(error.into())));
        }
        match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.count(data);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let silence = self.silence.as_mut();
                if silence.is_some_and(|silence| silence.as_mut().poll(context).is_ready()) {
                    return Poll::Ready(Some(Err(Silent.into())));
                }
                Poll::Pending
            }
        }
    }

    /// Counts the next part.
    fn count(&mut self, data: &[u8]) {
        // JSON has no line break in a text.
        let end = data.iter().rposition(|byte| *byte == b'\n');
        match end.filter(|_| self.silence.is_some()) {
            Some(end) => {
                self.bytes = data.len() - end - 1;
                self.place.give_back(Duration::ZERO);
                self.renew();
            }
            None => self.bytes += data.len(),
        }
    }

    /// Gives a watch its time once more: it has said something.
    fn renew(&mut self) {
        if let Some(silence) = &mut self.silence {
            silence.as_mut().reset(Instant::now() + max_silence());
        }
    }
}

impl HttpBody for ExtensionAnswer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Part> {
        let this = self.get_mut();
        if this.has_failed {
            return Poll::Ready(None);
        }
        let part = ready!(this.poll_part(context));
        if matches!(part, Some(Err(_))) {
            this.has_failed = true;
            this.place.give_back(Duration::ZERO);
        }
        Poll::Ready(part)
    }
}

#[cfg(test)]
mod tests;
