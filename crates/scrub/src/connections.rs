//! Connections that the kernel keeps in its table (conntrack) after the pods at their ends are gone.
//!
//! A peer that goes on sending keeps its connection there. If a pod of the next tenant gets the address of the former one, rules that let
//! established connections pass let in what the peer sends, without a look at NetworkPolicies. After the table is cleared, what it sends
//! begins a new connection, which these rules do not let pass.

use crate::{Unclean, files::at, node::Node};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::NETFILTER, recv, send, socket_with,
};
use std::io;

/// Is there if the kernel tracks connections. It is that of the network namespace of the program that reads it: the Job's, which is the
/// node's.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// Length of the header of a netlink message.
const HEADER: usize = 16;
/// Type of the message by which the kernel says how a request ended (`NLMSG_ERROR`).
const OUTCOME: u16 = 2;
/// Request that deletes connections: the part of netfilter that tracks them (`NFNL_SUBSYS_CTNETLINK`), and `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = (1 << 8) | 2;
/// Flags of a request that the kernel acknowledges (`NLM_F_REQUEST`, `NLM_F_ACK`).
const ACKNOWLEDGED: u16 = 1 | 4;

/// Removes all connections from the table. Those of the platform begin again: the kernel takes up the ones that no rule translates.
pub(crate) fn clear(node: &Node) -> Result<String, Unclean> {
    let count = node.path(COUNT);
    if !count.try_exists().map_err(at(&count))? {
        return Ok("the kernel tracks no connections".into());
    }
    delete_all().map_err(|error| {
        Unclean::Left(format!(
            "connections of tenants cannot be removed from the kernel's table: {error}; load the kernel module nf_conntrack_netlink"
        ))
    })?;
    Ok("the kernel's table of connections is cleared".into())
}

/// Deletes all connections of the network namespace, and waits until the kernel says that it has.
fn delete_all() -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(NETFILTER),
    )?;
    send(&socket, &request(), SendFlags::empty())?;
    let mut answer = [0_u8; 256];
    // The kernel has done it, and has answered, when the request is sent. If it had no memory for the answer, this fails.
    let (length, _) = recv(&socket, &mut answer, RecvFlags::DONTWAIT)?;
    outcome(answer.get(..length).unwrap_or_default())
}

/// The request. Its family and version 0 stand for connections of all families of addresses, and no attribute chooses among them.
fn request() -> [u8; HEADER + 4] {
    let mut request = [0; HEADER + 4];
    request[0..4].copy_from_slice(&20_u32.to_ne_bytes());
    request[4..6].copy_from_slice(&DELETE.to_ne_bytes());
    request[6..8].copy_from_slice(&ACKNOWLEDGED.to_ne_bytes());
    request
}

/// How a request ended, from the kernel's answer.
fn outcome(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..).and_then(<[u8]>::first_chunk::<2>);
    let error = answer.get(HEADER..).and_then(<[u8]>::first_chunk::<4>);
    let (Some(kind), Some(error)) = (kind, error) else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    if u16::from_ne_bytes(*kind) != OUTCOME {
        return Err(io::ErrorKind::InvalidData.into());
    }
    match i32::from_ne_bytes(*error) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of the kernel.
    fn answer(kind: u16, error: i32) -> Vec<u8> {
        let mut answer = vec![0; 36];
        answer[4..6].copy_from_slice(&kind.to_ne_bytes());
        answer[16..20].copy_from_slice(&error.to_ne_bytes());
        answer
    }

    #[test]
    fn a_kernel_that_tracks_no_connections_has_none_left() {
        let folder = tempfile::tempdir().unwrap();
        let cleared = clear(&Node::new(folder.path(), []));
        assert_eq!(cleared.unwrap(), "the kernel tracks no connections");
    }

    #[test]
    fn the_request_has_its_length_and_chooses_no_connections() {
        let request = request();
        assert_eq!(request[0..4], u32::try_from(request.len()).unwrap().to_ne_bytes());
        assert_eq!(request[4..6], 0x102_u16.to_ne_bytes());
        assert_eq!(request[16..20], [0; 4], "any family");
    }

    #[test]
    fn only_an_acknowledgement_is_a_success() {
        assert!(outcome(&answer(OUTCOME, 0)).is_ok());
        let refused = outcome(&answer(OUTCOME, -1)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(outcome(&answer(OUTCOME, i32::MIN)).is_err());
        assert!(outcome(&answer(DELETE, 0)).is_err(), "another message");
        for cut in [0, 5, 19] {
            assert!(outcome(&answer(OUTCOME, 0)[..cut]).is_err(), "{cut}");
        }
    }
}
