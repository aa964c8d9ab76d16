//! Pods come to their turn.

use super::*;

/// A request of a user in a namespace of several that has a name of its own.
fn request_of_user(user: usize, number: usize) -> Request {
    Request {
        user: Some(format!("u{user}").into()),
        ..request_of(0, number)
    }
}

/// Asks for a place. Returns whether the pod waits. Pods of users with limits are alike only if they are of the same user.
fn waits(room: &mut WaitingRoom, request: Request, shape: usize) -> bool {
    let shape = format!("{:?}-{shape}", request.user);
    room.ask(&shape.into(), request, Instant::now()).waits.is_some()
}

/// One place becomes free again and again, while others ask for pods of shapes. Returns how many turns a pod of a shape waits that asks after some of them.
/// `request` makes the requests: of whom, and with which number.
fn turns_until_it_comes(
    request: impl Fn(usize, usize) -> Request,
    before: Vec<(usize, usize)>,
    after: Vec<(usize, usize)>,
    shape: usize,
) -> Option<usize> {
    let mut room = WaitingRoom::new(MOST, None);
    let mut numbers = 0..;
    let mut next = |of: usize| request(of, numbers.next().unwrap());
    for number in 0..MOST - 1 {
        assert!(!waits(&mut room, next(9), 100 + number), "it has a place for ever");
    }
    let last = next(9);
    let mut current = last.name.clone();
    assert!(!waits(&mut room, last, 200));
    for (of, shape) in before {
        assert!(waits(&mut room, next(of), shape));
    }
    let honest = next(8);
    assert!(waits(&mut room, honest.clone(), shape));
    let mut turns = 0;
    for (of, shape) in after {
        assert!(waits(&mut room, next(of), shape));
        let admitted = room.observe(&current, OnHost::Placed);
        assert_eq!(admitted.len(), 1);
        current = admitted[0].clone();
        turns += 1;
        if current == honest.name {
            return Some(turns);
        }
    }
    None
}

proptest! {
    /// Whatever others ask for.
    #[test]
    fn a_pod_waits_for_one_turn_of_each_other_namespace_or_user_of_its_namespace(
        before in vec((0..4_usize, 0..30_usize), 0..30),
        after in vec((0..4_usize, 0..30_usize), 8),
        shape in 0..30_usize,
        are_users in any::<bool>(),
    ) {
        let request = if are_users { request_of_user } else { request_of };
        let turns = turns_until_it_comes(request, before, after, shape);
        prop_assert!(turns.is_some_and(|turns| turns <= 5), "{:?} turns", turns);
    }
}
