//! Reads the ClientHello of a TLS connection without ending TLS: the bytes are kept, to be passed on as they are.

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum size of a ClientHello with the headers of its records. Usual ones have less than 2 KiB, with keys of post-quantum
/// algorithms less than 4 KiB.
pub const MAX_CLIENT_HELLO: usize = 16 << 10;
/// Bytes that are read at a time: most ClientHellos are complete after one read.
const READ: usize = 2 << 10;
/// Maximum size of an alert: the header of a record, and two bytes for each of few alerts.
const MAX_ALERT: usize = 64;

/// TLS alert `decode_error`, RFC 8446 section 6.
pub const DECODE_ERROR: u8 = 50;
/// TLS alert `internal_error`.
pub const INTERNAL_ERROR: u8 = 80;
/// TLS alert `unrecognized_name`.
pub const UNRECOGNIZED_NAME: u8 = 112;

/// A fatal alert, as a record that is not encrypted.
pub fn alert(description: u8) -> [u8; 7] {
    /// Content type of alerts.
    const ALERT: u8 = 21;
    /// TLS 1.2, which TLS 1.3 uses in the headers of records, too.
    const VERSION: [u8; 2] = [3, 3];
    /// Level of the alert.
    const FATAL: u8 = 2;
    [ALERT, VERSION[0], VERSION[1], 0, 2, FATAL, description]
}

/// What a client sent first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The host name that it asks for (SNI), in lower case.
    pub server_name: Option<String>,
    /// All bytes that were read.
    pub bytes: Vec<u8>,
}

/// Why there is no ClientHello.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The client closed the connection.
    #[error("the connection ended before the ClientHello was complete")]
    Closed,
    /// It is larger than [`MAX_CLIENT_HELLO`].
    #[error("the ClientHello is larger than {MAX_CLIENT_HELLO} bytes")]
    TooLong,
    /// This is not TLS, or not a ClientHello.
    #[error("no ClientHello: {error}")]
    Invalid {
        /// The reason.
        error: rustls::Error,
        /// The alert to answer with; may be empty.
        alert: Vec<u8>,
    },
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// A ClientHello that arrives in pieces.
#[derive(Default)]
struct Incomplete {
    acceptor: Acceptor,
    bytes: Vec<u8>,
}

/// What is in a complete ClientHello.
#[derive(Debug, PartialEq, Eq)]
struct Complete {
    server_name: Option<String>,
}

impl Incomplete {
    /// Takes the next bytes. Returns the server name once the ClientHello is complete.
    fn feed(&mut self, bytes: &[u8]) -> Result<Option<Complete>, HelloError> {
        if self.bytes.len() + bytes.len() > MAX_CLIENT_HELLO {
            return Err(HelloError::TooLong);
        }
        self.bytes.extend_from_slice(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            self.acceptor.read_tls(&mut rest)?;
            match self.acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let server_name = accepted.client_hello().server_name().map(str::to_ascii_lowercase);
                    return Ok(Some(Complete { server_name }));
                }
                Err((error, mut alert)) => {
                    let mut bytes = Vec::new();
                    // Writing into memory takes everything at once.
                    while bytes.len() < MAX_ALERT && alert.write(&mut bytes)? > 0 {}
                    return Err(HelloError::Invalid { error, alert: bytes });
                }
            }
        }
        Ok(None)
    }
}

/// Reads until the ClientHello is complete. Set a time limit: a client may stay silent.
///
/// # Errors
/// As [`HelloError`] says.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<ClientHello, HelloError> {
    let mut incomplete = Incomplete::default();
    let mut buffer = [0; READ];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Err(HelloError::Closed);
        }
        if let Some(Complete { server_name }) = incomplete.feed(&buffer[..length])? {
            return Ok(ClientHello {
                server_name,
                bytes: incomplete.bytes,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, pki_types::ServerName};
    use std::{sync::Arc, time::Duration};
    use tokio::io::AsyncWriteExt;

    /// What a client of rustls sends first.
    fn hello_for(name: &str, protocols: usize) -> Vec<u8> {
        berth_runtime::install_crypto();
        let mut config = ClientConfig::builder()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = vec![vec![b'a'; 250]; protocols];
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    #[test]
    fn every_fragmentation_gives_the_same_name_and_the_same_bytes() {
        let hello = hello_for("Vision.team-a.example.com", 0);
        for size in [1, 2, 5, 6, 17, 100, hello.len() - 1, hello.len()] {
            let mut incomplete = Incomplete::default();
            let mut found = None;
            for (index, piece) in hello.chunks(size).enumerate() {
                assert_eq!(found, None, "complete before piece {index} of {size} bytes");
                found = incomplete.feed(piece).unwrap();
            }
            assert_eq!(
                found,
                Some(Complete {
                    server_name: Some("vision.team-a.example.com".into())
                }),
                "pieces of {size}"
            );
            assert_eq!(incomplete.bytes, hello);
        }
    }

    #[tokio::test]
    async fn a_hello_in_several_records_is_read() {
        let hello = hello_for("a.b.example.com", 0);
        // The same message in records of 50 bytes.
        let mut records = Vec::new();
        for piece in hello[5..].chunks(50) {
            records.extend([22, 3, 1, 0, u8::try_from(piece.len()).unwrap()]);
            records.extend(piece);
        }
        let read = read(&mut records.as_slice()).await.unwrap();
        assert_eq!(read.server_name.as_deref(), Some("a.b.example.com"));
        assert_eq!(read.bytes, records);
    }

    #[tokio::test]
    async fn bytes_behind_the_hello_are_kept() {
        let mut sent = hello_for("a.b.example.com", 0);
        sent.extend([23, 3, 3, 0, 3, 1, 2, 3]);
        assert_eq!(read(&mut sent.as_slice()).await.unwrap().bytes, sent);
    }

    #[tokio::test]
    async fn an_address_is_no_server_name() {
        let read = read(&mut hello_for("127.0.0.1", 0).as_slice()).await.unwrap();
        assert_eq!(read.server_name, None);
    }

    #[tokio::test]
    async fn what_is_not_tls_is_answered_with_an_alert() {
        for garbage in [
            b"GET / HTTP/1.1\r\nHost: a.b.example.com\r\n\r\n".as_slice(),
            b"SSH-2.0-OpenSSH_9.2p1\r\n",
            &[0; 64],
            &[0xff; 64],
            // A record of application data, and a handshake message that is no ClientHello.
            &[23, 3, 3, 0, 4, 1, 2, 3, 4],
            &[22, 3, 3, 0, 4, 14, 0, 0, 0],
        ] {
            match read(&mut &*garbage).await {
                Err(HelloError::Invalid { alert, .. }) => {
                    assert!(alert.len() <= MAX_ALERT, "{garbage:?}: {alert:?}");
                    assert!(alert.first().is_none_or(|first| *first == 21), "{garbage:?}: {alert:?}");
                }
                other => panic!("{garbage:?}: {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn half_a_hello_is_an_end() {
        let hello = hello_for("a.b.example.com", 0);
        for length in [0, 1, 5, hello.len() / 2, hello.len() - 1] {
            assert!(matches!(read(&mut &hello[..length]).await, Err(HelloError::Closed)));
        }
    }

    #[tokio::test]
    async fn large_hellos_are_read_up_to_the_limit() {
        let large = hello_for("a.b.example.com", 56);
        assert!(
            large.len() > 14_000 && large.len() < MAX_CLIENT_HELLO,
            "{}",
            large.len()
        );
        assert!(read(&mut large.as_slice()).await.is_ok());
        let larger = hello_for("a.b.example.com", 70);
        assert!(larger.len() > MAX_CLIENT_HELLO);
        assert!(matches!(read(&mut larger.as_slice()).await, Err(HelloError::TooLong)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_byte_by_byte_is_cut_off_by_the_callers_limit() {
        let (mut near, mut far) = tokio::io::duplex(64);
        let hello = hello_for("a.b.example.com", 0);
        let slow = tokio::spawn(async move {
            for byte in hello {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if far.write_all(&[byte]).await.is_err() {
                    break;
                }
            }
        });
        let read = tokio::time::timeout(Duration::from_secs(5), read(&mut near)).await;
        assert!(read.is_err(), "it is read for ever");
        slow.abort();
    }

    #[test]
    fn alerts_are_fatal_records() {
        assert_eq!(alert(UNRECOGNIZED_NAME), [21, 3, 3, 0, 2, 2, 112]);
    }

    /// Feeds bytes in pieces until there is a result.
    fn feed(bytes: &[u8], size: usize) -> (usize, Option<Result<Complete, HelloError>>) {
        let mut incomplete = Incomplete::default();
        let result = bytes.chunks(size).find_map(|piece| incomplete.feed(piece).transpose());
        (incomplete.bytes.len(), result)
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..20_000), size in 1..5000_usize) {
            let (kept, _) = feed(&bytes, size);
            prop_assert!(kept <= MAX_CLIENT_HELLO);
        }

        #[test]
        fn changed_hellos_are_read_or_refused(changes in vec((any::<usize>(), any::<u8>()), 1..8), size in 1..600_usize) {
            let mut hello = hello_for("a.b.example.com", 1);
            let length = hello.len();
            for (at, byte) in changes {
                hello[at % length] = byte;
            }
            if let (_, Some(Ok(Complete { server_name: Some(name) }))) = feed(&hello, size) {
                prop_assert!(name.is_ascii() && name == name.to_ascii_lowercase());
            }
        }
    }
}
