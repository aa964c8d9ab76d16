//! The header of the PROXY protocol, version 2: by it a load balancer says from which address a connection came to it. See
//! <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>, section 2.2.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tokio::io::{AsyncRead, AsyncReadExt};

/// What every header begins with.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and protocol, length of the rest.
const PREFIX: usize = 16;
/// Maximum length of the rest: addresses, and what load balancers add to them.
const MAX_REST: usize = 4 << 10;

/// Why there is no header.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The connection does not begin with a header of version 2.
    #[error("the connection does not begin with a header of the PROXY protocol, version 2: {0}")]
    Invalid(&'static str),
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// What the first 16 bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    addresses: Addresses,
    rest: usize,
}

/// Form of the addresses that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addresses {
    /// The load balancer speaks for itself, as in health checks, or of no address of IP.
    None,
    V4,
    V6,
}

fn parse_prefix(bytes: &[u8; PREFIX]) -> Result<Prefix, ProxyError> {
    let (signature, [command, family, high, low]) = bytes.split_at(SIGNATURE.len()) else {
        return Err(ProxyError::Invalid("it is too short"));
    };
    if signature != SIGNATURE {
        return Err(ProxyError::Invalid("its first 12 bytes differ"));
    }
    let is_proxied = match command {
        0x20 => false,
        0x21 => true,
        _ => return Err(ProxyError::Invalid("its version or command is unknown")),
    };
    let addresses = match (is_proxied, family >> 4) {
        (true, 1) => Addresses::V4,
        (true, 2) => Addresses::V6,
        _ => Addresses::None,
    };
    let rest = usize::from(u16::from_be_bytes([*high, *low]));
    if rest > MAX_REST {
        return Err(ProxyError::Invalid("it is larger than 4 KiB"));
    }
    Ok(Prefix { addresses, rest })
}

/// The address of the client, which is the first one.
fn parse_source(addresses: Addresses, rest: &[u8]) -> Result<Option<IpAddr>, ProxyError> {
    // Two addresses and two ports.
    const V4: usize = 2 * 4 + 2 * 2;
    const V6: usize = 2 * 16 + 2 * 2;
    let short = || ProxyError::Invalid("it has no addresses");
    Ok(match addresses {
        Addresses::None => None,
        Addresses::V4 => {
            let (source, _) = rest
                .get(..V4)
                .and_then(<[u8]>::split_first_chunk::<4>)
                .ok_or_else(short)?;
            Some(Ipv4Addr::from(*source).into())
        }
        Addresses::V6 => {
            let (source, _) = rest
                .get(..V6)
                .and_then(<[u8]>::split_first_chunk::<16>)
                .ok_or_else(short)?;
            Some(Ipv6Addr::from(*source).into())
        }
    })
}

/// Reads a header and nothing behind it. Returns the address of the client; `None` if the load balancer itself is the client.
///
/// # Errors
/// As [`ProxyError`] says.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<IpAddr>, ProxyError> {
    let mut prefix = [0; PREFIX];
    stream.read_exact(&mut prefix).await?;
    let prefix = parse_prefix(&prefix)?;
    let mut rest = vec![0; prefix.rest];
    stream.read_exact(&mut rest).await?;
    parse_source(prefix.addresses, &rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    async fn parse(bytes: &[u8]) -> Result<Option<IpAddr>, ProxyError> {
        read(&mut &*bytes).await
    }

    #[tokio::test]
    async fn the_address_of_the_client_is_read() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 0xc0, 0x01, 0x01, 0xbb];
        assert_eq!(
            parse(&header(0x21, 0x11, &v4)).await.unwrap(),
            Some([192, 0, 2, 7].into())
        );
        let client: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let v6 = [&client.octets()[..], &[0; 16], &[0, 1, 0, 2], &[3, 0, 1, 9]].concat();
        assert_eq!(parse(&header(0x21, 0x21, &v6)).await.unwrap(), Some(client.into()));
    }

    #[tokio::test]
    async fn what_follows_the_header_is_left() {
        let mut bytes = header(0x21, 0x11, &[1; 20]);
        bytes.extend(b"hello");
        let mut rest = bytes.as_slice();
        read(&mut rest).await.unwrap();
        assert_eq!(rest, b"hello");
    }

    #[tokio::test]
    async fn a_health_check_has_no_address() {
        assert_eq!(parse(&header(0x20, 0x00, &[])).await.unwrap(), None);
        assert_eq!(parse(&header(0x20, 0x11, &[1; 12])).await.unwrap(), None);
        assert_eq!(
            parse(&header(0x21, 0x31, &[0; 216])).await.unwrap(),
            None,
            "a Unix socket"
        );
    }

    #[tokio::test]
    async fn anything_else_is_refused() {
        for bad in [
            b"PROXY TCP4 192.0.2.7 10.0.0.1 49153 443\r\n".to_vec(),
            header(0x11, 0x11, &[1; 12]),
            header(0x22, 0x11, &[1; 12]),
            header(0x21, 0x11, &[1; 11]),
            header(0x21, 0x21, &[1; 35]),
            header(0x21, 0x11, &[1; 4097]),
        ] {
            assert!(matches!(parse(&bad).await, Err(ProxyError::Invalid(_))), "{bad:?}");
        }
        let whole = header(0x21, 0x11, &[1; 12]);
        for length in [0, 1, 12, 15, 16, whole.len() - 1] {
            assert!(
                matches!(parse(&whole[..length]).await, Err(ProxyError::Io(_))),
                "{length}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused(prefix in any::<[u8; 4]>(), rest in vec(any::<u8>(), 0..256)) {
            let mut bytes = [0; PREFIX];
            bytes[..SIGNATURE.len()].copy_from_slice(&SIGNATURE);
            bytes[SIGNATURE.len()..].copy_from_slice(&prefix);
            if let Ok(prefix) = parse_prefix(&bytes) {
                prop_assert!(prefix.rest <= MAX_REST);
                let _ = parse_source(prefix.addresses, &rest);
            }
        }
    }
}
