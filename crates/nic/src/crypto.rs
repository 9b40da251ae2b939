//! Handshake and seal, both from libraries: Noise NNpsk0 by `snow`, AEGIS-128L
//! (draft-irtf-cfrg-aegis-aead) by `aegis`, AES-256-GCM (NIST SP 800-38D) by `aws-lc-rs`.
//!
//! Invariant: a key seals each packet number once. After `KEY_PACKETS` packets both sides move to
//! the next key by Noise's own rekeying rule, without a message: the packet number says which.

use aegis::aegis128l::Aegis128L;
use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher as NoiseCipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use std::ops::Range;

use crate::cipher::Cipher;
use crate::config::ClusterKey;
use crate::limits::KEY_PACKETS;
use crate::rng::Rng;
use crate::wire::packet::HEADER_BYTES;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes a handshake message adds to its payload: the ephemeral key and the tag.
pub(crate) const HANDSHAKE_OVERHEAD: usize = 48;
/// Bytes an AEAD seal adds.
const TAG_BYTES: usize = 16;
/// Bytes that a sealed packet has beside header and body, at most.
pub(crate) const SEAL_BYTES_MAX: usize = if TAG_BYTES > PLAIN_CHECK_BYTES { TAG_BYTES } else { PLAIN_CHECK_BYTES };
const AEGIS_BYTES: usize = 16;
/// Of AEGIS.
const NONCE_BYTES: usize = 16;
/// Bytes of the plain mode's checksum.
const CHECKSUM_BYTES: usize = 8;
/// Bytes between header and body of a plain packet: start and length of what the checksum leaves
/// out, and the checksum. They stand before the body so that memory which is put in later can be
/// the end of the datagram.
const PLAIN_CHECK_BYTES: usize = 8 + CHECKSUM_BYTES;
/// Where the checksum stands in a plain packet.
const SUM: Range<usize> = HEADER_BYTES + 8..HEADER_BYTES + PLAIN_CHECK_BYTES;

/// A handshake in progress.
pub(crate) struct Handshake(HandshakeState);

/// The two directions of a session.
pub(crate) struct Seals {
    pub(crate) send: Seal,
    pub(crate) receive: Seal,
    /// None: plain.
    pub(crate) cipher: Option<Cipher>,
}

impl Handshake {
    pub(crate) fn initiate(key: &ClusterKey, prologue: &[u8], rng: &mut Rng) -> Handshake {
        Handshake(state(key, prologue, rng, true))
    }

    pub(crate) fn respond(key: &ClusterKey, prologue: &[u8], rng: &mut Rng) -> Handshake {
        Handshake(state(key, prologue, rng, false))
    }

    /// Appends a message with `payload` to `out`.
    pub(crate) fn write(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + payload.len() + HANDSHAKE_OVERHEAD, 0);
        let len =
            self.0.write_message(payload, &mut out[start..]).expect("it is this side's turn and the buffer has room");
        out.truncate(start + len);
    }

    /// Opens a message; `None` when it was not made with the cluster key.
    pub(crate) fn read(&mut self, message: &[u8], payload: &mut [u8]) -> Option<usize> {
        self.0.read_message(message, payload).ok()
    }

    /// After both messages: the keys of this side.
    pub(crate) fn finish(mut self, initiator: bool, cipher: Cipher) -> Seals {
        let (first, second) = self.0.dangerously_get_raw_split();
        let (send, receive) = if initiator { (first, second) } else { (second, first) };
        Seals { send: Seal::aead(send, cipher), receive: Seal::aead(receive, cipher), cipher: Some(cipher) }
    }
}

fn state(key: &ClusterKey, prologue: &[u8], rng: &mut Rng, initiator: bool) -> HandshakeState {
    let params: NoiseParams = PATTERN.parse().expect("the pattern is a valid Noise name");
    let resolver = Box::new(Seeded { seed: rng.seed(), inner: DefaultResolver });
    let builder = Builder::with_resolver(params, resolver)
        .psk(0, &key.0)
        .and_then(|builder| builder.prologue(prologue))
        .expect("each is set once");
    let state = if initiator { builder.build_initiator() } else { builder.build_responder() };
    state.expect("NN needs no static keys and the resolver has every primitive of the pattern")
}

/// Noise primitives with the engine's own randomness, so that a simulation replays.
struct Seeded {
    seed: [u8; 32],
    inner: DefaultResolver,
}

impl CryptoResolver for Seeded {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(SeededRandom(Rng::new(self.seed))))
    }
    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        self.inner.resolve_dh(choice)
    }
    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        self.inner.resolve_hash(choice)
    }
    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn NoiseCipher>> {
        self.inner.resolve_cipher(choice)
    }
}

struct SeededRandom(Rng);

impl Random for SeededRandom {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        self.0.fill(dest);
        Ok(())
    }
}

/// Protection of one direction of a session.
pub(crate) enum Seal {
    /// Plain mode: a checksum against damage, nothing against malice.
    Plain,
    Aead(Keys),
}

/// Keys of the current span of packet numbers and of its neighbours, as far as known.
pub(crate) struct Keys {
    epoch: u64,
    current: Key,
    /// For packets delayed across a change of keys.
    previous: Option<Key>,
}

impl Seal {
    /// `half`: this direction's half of what the handshake gives; the key, or its first bytes.
    fn aead(half: [u8; 32], cipher: Cipher) -> Seal {
        Seal::Aead(Keys { epoch: 0, current: Key::new(cipher, half), previous: None })
    }

    /// Where the body begins in a packet.
    #[inline]
    pub(crate) fn body_at(&self) -> usize {
        match self {
            Seal::Plain => HEADER_BYTES + PLAIN_CHECK_BYTES,
            Seal::Aead(_) => HEADER_BYTES,
        }
    }

    /// Bytes a sealed packet has behind its body.
    #[inline]
    pub(crate) fn tag_bytes(&self) -> usize {
        match self {
            Seal::Plain => 0,
            Seal::Aead(_) => TAG_BYTES,
        }
    }

    /// Bytes a sealed packet has beside its body.
    #[inline]
    pub(crate) fn beside_body(&self) -> usize {
        self.body_at() + self.tag_bytes()
    }

    /// Whether packets can hold bytes that are only put in after [`seal`](Self::seal).
    #[inline]
    pub(crate) fn may_lend(&self) -> bool {
        matches!(self, Seal::Plain)
    }

    /// Seals the body, which ends at `end`, in place and returns the whole length. Of a packet that
    /// [may](Self::may_lend) lend, `lent` bytes at `at` are not here yet and will be put in: the
    /// checksum leaves them out.
    pub(crate) fn seal(&mut self, number: u64, packet: &mut [u8], end: usize, (at, lent): (usize, usize)) -> usize {
        match self {
            Seal::Plain => {
                let at = if lent > 0 { at } else { 0 };
                packet[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&(at as u32).to_le_bytes());
                packet[HEADER_BYTES + 4..SUM.start].copy_from_slice(&(lent as u32).to_le_bytes());
                packet[SUM].fill(0);
                let sum = checksum_of(&packet[..at], &packet[at..end]);
                packet[SUM].copy_from_slice(&sum.to_le_bytes());
                end
            }
            Seal::Aead(keys) => {
                assert_eq!(lent, 0, "sealed packets do not lend");
                keys.advance_to(number / KEY_PACKETS);
                let (header, body) = packet[..end].split_at_mut(HEADER_BYTES);
                let tag = keys.current.seal(number, header, body);
                packet[end..end + TAG_BYTES].copy_from_slice(&tag);
                end + TAG_BYTES
            }
        }
    }

    /// Whether a packet that opens does so whatever these bytes are.
    pub(crate) fn leaves_out(&self, packet: &[u8], (at, len): (usize, usize)) -> bool {
        let Seal::Plain = self else { return false };
        let left_out = packet.get(HEADER_BYTES..SUM.start);
        left_out.is_some_and(|t| t[..4] == (at as u32).to_le_bytes() && t[4..] == (len as u32).to_le_bytes())
    }

    /// Opens a packet in place; gives its body.
    pub(crate) fn open<'p>(&mut self, number: u64, packet: &'p mut [u8]) -> Option<&'p [u8]> {
        match self {
            Seal::Plain => {
                let (left_out, sum) = packet.get(HEADER_BYTES..SUM.end)?.split_at(8);
                let [at, len] = [0, 4].map(|i| u32::from_le_bytes(std::array::from_fn(|k| left_out[i + k])) as usize);
                let sum: [u8; CHECKSUM_BYTES] = sum.try_into().expect("8 bytes");
                let after = at.checked_add(len).filter(|after| *after <= packet.len())?;
                packet[SUM].fill(0);
                let good = sum == checksum_of(&packet[..at], &packet[after..]).to_le_bytes();
                packet[SUM].copy_from_slice(&sum);
                good.then_some(&packet[SUM.end..])
            }
            Seal::Aead(keys) => {
                let end = keys.open(number, packet)?;
                Some(&packet[HEADER_BYTES..end])
            }
        }
    }
}

impl Keys {
    fn advance_to(&mut self, epoch: u64) {
        while self.epoch < epoch {
            let next = self.next();
            self.previous = Some(std::mem::replace(&mut self.current, next));
            self.epoch += 1;
        }
    }

    /// Noise's REKEY: encrypt zeros with the largest nonce.
    fn next(&self) -> Key {
        let mut next = [0; 32];
        let _tag = self.current.seal(u64::MAX, &[], &mut next[..self.current.bytes()]);
        Key::new(self.current.cipher(), next)
    }

    fn open(&mut self, number: u64, packet: &mut [u8]) -> Option<usize> {
        let epoch = number / KEY_PACKETS;
        let (header, body) = packet.split_at_mut_checked(HEADER_BYTES)?;
        let body_len = if epoch == self.epoch {
            self.current.open(number, header, body)?
        } else if epoch + 1 == self.epoch {
            self.previous.as_ref()?.open(number, header, body)?
        } else if epoch == self.epoch + 1 {
            let next = self.next();
            let len = next.open(number, header, body)?;
            // Only a packet that opens may move the keys on.
            self.previous = Some(std::mem::replace(&mut self.current, next));
            self.epoch = epoch;
            len
        } else {
            return None;
        };
        Some(HEADER_BYTES + body_len)
    }
}

/// A key of either cipher. The branch between them goes the same way for all packets of a session.
enum Key {
    /// There is nothing to prepare for it: a sender that seals seldom pays no more than one that
    /// seals often.
    Aegis([u8; AEGIS_BYTES]),
    #[cfg(feature = "aes-256-gcm")]
    Aes(Box<aes::Key>),
}

impl Key {
    fn new(cipher: Cipher, bytes: [u8; 32]) -> Key {
        match cipher {
            #[cfg(feature = "aes-256-gcm")]
            Cipher::Aes256Gcm => Key::Aes(Box::new(aes::Key::new(&bytes))),
            // Without the feature a node neither offers nor takes the other one.
            _ => Key::Aegis(std::array::from_fn(|i| bytes[i])),
        }
    }

    fn cipher(&self) -> Cipher {
        match self {
            Key::Aegis(_) => Cipher::Aegis128L,
            #[cfg(feature = "aes-256-gcm")]
            Key::Aes(_) => Cipher::Aes256Gcm,
        }
    }

    /// Bytes of such a key.
    fn bytes(&self) -> usize {
        match self {
            Key::Aegis(_) => AEGIS_BYTES,
            #[cfg(feature = "aes-256-gcm")]
            Key::Aes(_) => 32,
        }
    }

    /// Encrypts `body` in place and gives the tag, which covers `header` too.
    #[inline]
    fn seal(&self, number: u64, header: &[u8], body: &mut [u8]) -> [u8; TAG_BYTES] {
        match self {
            Key::Aegis(key) => aegis(key, number).encrypt_in_place(body, header),
            #[cfg(feature = "aes-256-gcm")]
            Key::Aes(key) => key.seal(number, header, body),
        }
    }

    /// Checks and decrypts a body with its tag in place; gives the length without the tag.
    #[inline]
    fn open(&self, number: u64, header: &[u8], body: &mut [u8]) -> Option<usize> {
        match self {
            Key::Aegis(key) => {
                let (body, tag) = body.split_last_chunk_mut::<TAG_BYTES>()?;
                aegis(key, number).decrypt_in_place(body, tag, header).ok()?;
                Some(body.len())
            }
            #[cfg(feature = "aes-256-gcm")]
            Key::Aes(key) => key.open(number, header, body),
        }
    }
}

#[inline]
fn aegis(key: &[u8; AEGIS_BYTES], number: u64) -> Aegis128L<TAG_BYTES> {
    let mut nonce = [0; NONCE_BYTES];
    nonce[8..].copy_from_slice(&number.to_be_bytes());
    Aegis128L::new(key, &nonce)
}

/// AES-256-GCM, by `aws-lc-rs`.
#[cfg(feature = "aes-256-gcm")]
mod aes {
    use super::TAG_BYTES;
    use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

    pub(super) struct Key(LessSafeKey);

    impl Key {
        pub(super) fn new(bytes: &[u8; 32]) -> Key {
            Key(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes).expect("the cipher has keys of 32 bytes")))
        }

        pub(super) fn seal(&self, number: u64, header: &[u8], body: &mut [u8]) -> [u8; TAG_BYTES] {
            let tag = self.0.seal_in_place_separate_tag(nonce(number), Aad::from(header), body);
            let tag = tag.expect("a datagram is far shorter than what the cipher takes");
            tag.as_ref().try_into().expect("a tag has 16 bytes")
        }

        pub(super) fn open(&self, number: u64, header: &[u8], body: &mut [u8]) -> Option<usize> {
            Some(self.0.open_in_place(nonce(number), Aad::from(header), body).ok()?.len())
        }
    }

    /// A key seals each packet number once: see the page of the module above.
    fn nonce(number: u64) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Checksum of what stands before and behind bytes that it leaves out.
#[inline]
fn checksum_of(head: &[u8], tail: &[u8]) -> u64 {
    let before = if head.is_empty() { CHECKSUM_OF_NOTHING } else { checksum(head) };
    before.rotate_left(1) ^ checksum(tail)
}

/// [`checksum`] of no bytes: what stands before nothing left out.
const CHECKSUM_OF_NOTHING: u64 = 0xf084_a77e_adbe_911e;

/// Plain mode's checksum: finds damage, not malice. Four lanes keep it near memory speed.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [bytes.len() as u64, K, !K, K.rotate_left(32)];
    let blocks = bytes.chunks_exact(32);
    let rest = blocks.remainder();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            *lane = (*lane ^ word).wrapping_mul(K).rotate_left(29);
        }
    }
    let mut tail = [0; 4];
    let words = rest.chunks_exact(8);
    tail[rest.len() / 8] = words.remainder().iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    for (tail, word) in tail.iter_mut().zip(words) {
        *tail = u64::from_le_bytes(word.try_into().expect("8 bytes"));
    }
    for (lane, word) in lanes.iter_mut().zip(tail) {
        *lane = (*lane ^ word).wrapping_mul(K).rotate_left(29);
    }
    lanes.iter().fold(0, |sum: u64, lane| (sum ^ lane ^ lane >> 31).wrapping_mul(K).rotate_left(27))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that this build has.
    fn ciphers() -> impl Iterator<Item = Cipher> {
        Cipher::ALL.into_iter().filter(|cipher| cipher.is_built())
    }

    fn pair(cipher: Cipher) -> (Seals, Seals) {
        let (key, mut rng) = (ClusterKey([7; 32]), Rng::new([1; 32]));
        let mut initiator = Handshake::initiate(&key, b"p", &mut rng);
        let mut responder = Handshake::respond(&key, b"p", &mut rng);
        let (mut first, mut second, mut payload) = (Vec::new(), Vec::new(), [0; 64]);
        initiator.write(b"hello", &mut first);
        assert_eq!(responder.read(&first, &mut payload), Some(5));
        responder.write(b"welcome", &mut second);
        assert_eq!(initiator.read(&second, &mut payload), Some(7));
        (initiator.finish(true, cipher), responder.finish(false, cipher))
    }

    fn exchange(from: &mut Seal, to: &mut Seal, number: u64) -> bool {
        let mut packet = vec![3; 200];
        let len = from.seal(number, &mut packet, 100, (0, 0));
        to.open(number, &mut packet[..len]) == Some(&vec![3; 100 - from.body_at()])
    }

    #[test]
    fn both_sides_agree_on_keys_across_changes() {
        for cipher in ciphers() {
            let (mut a, mut b) = pair(cipher);
            assert!(exchange(&mut a.send, &mut b.receive, 0));
            assert!(exchange(&mut b.send, &mut a.receive, 0));
            let mut late = vec![3; 200];
            let late_len = a.send.seal(KEY_PACKETS - 1, &mut late, 100, (0, 0));
            assert!(exchange(&mut a.send, &mut b.receive, KEY_PACKETS));
            assert_eq!(b.receive.open(KEY_PACKETS - 1, &mut late[..late_len]), Some(&[3; 80][..]));
            assert!(exchange(&mut a.send, &mut b.receive, 2 * KEY_PACKETS + 5));
        }
    }

    #[test]
    fn the_seal_is_that_of_the_wire_format() {
        // The first test vector of draft-irtf-cfrg-aegis-aead.
        let cipher = Aegis128L::<TAG_BYTES>::new(
            &0x1001_0000_0000_0000_0000_0000_0000_0000u128.to_be_bytes(),
            &0x1000_0200_0000_0000_0000_0000_0000_0000u128.to_be_bytes(),
        );
        let mut body = [0; 16];
        let tag = cipher.encrypt_in_place(&mut body, b"");
        assert_eq!(u128::from_be_bytes(body), 0xc1c0_e58b_d913_006f_eba0_0f4b_3cc3_594e);
        assert_eq!(u128::from_be_bytes(tag), 0xabe0_ece8_0c24_868a_226a_35d1_6bda_e37a);
        for cipher in ciphers() {
            let (key, other) = (Key::new(cipher, [9; 32]), Key::new(cipher, [8; 32]));
            assert_eq!(key.cipher(), cipher);
            for len in [0, 1, 46, 1400, 65_000] {
                let mut sealed = vec![5; len];
                let tag = key.seal(7, b"header", &mut sealed);
                sealed.extend_from_slice(&tag);
                let opened = |key: &Key, number, header: &[u8]| {
                    let mut packet = sealed.clone();
                    key.open(number, header, &mut packet).map(|len| packet[..len].to_vec())
                };
                assert_eq!(opened(&key, 7, b"header"), Some(vec![5; len]));
                assert_eq!(opened(&key, 8, b"header"), None, "another number");
                assert_eq!(opened(&key, 7, b"Header"), None, "another header");
                assert_eq!(opened(&other, 7, b"header"), None, "another key");
            }
            assert_eq!(key.open(7, b"header", &mut [0; TAG_BYTES - 1]), None, "shorter than a tag");
        }
    }

    #[test]
    #[cfg(feature = "aes-256-gcm")]
    fn the_other_seal_is_that_of_the_standard() {
        // Test case 14 of the GCM specification: key, nonce and text of zeros.
        let mut body = [0; 16];
        let tag = Key::new(Cipher::Aes256Gcm, [0; 32]).seal(0, b"", &mut body);
        assert_eq!(u128::from_be_bytes(body), 0xcea7_403d_4d60_6b6e_074e_c5d3_baf3_9d18);
        assert_eq!(u128::from_be_bytes(tag), 0xd0d1_c8a7_9999_6bf0_265b_98b5_d48a_b919);
    }

    #[test]
    fn a_wrong_key_or_a_damaged_packet_does_not_open() {
        let (mut a, mut b) = pair(ciphers().last().expect("there is one"));
        for sealed in [true, false] {
            let (mut plain_a, mut plain_b) = (Seal::Plain, Seal::Plain);
            let (from, to) = if sealed { (&mut a.send, &mut b.receive) } else { (&mut plain_a, &mut plain_b) };
            let mut packet = vec![3; 200];
            let len = from.seal(1, &mut packet, 100, (0, 0));
            for at in 0..len {
                let mut damaged = packet[..len].to_vec();
                damaged[at] ^= 4;
                assert_eq!(to.open(1, &mut damaged), None, "byte {at} sealed {sealed}");
            }
        }
        let mut rng = Rng::new([1; 32]);
        let mut initiator = Handshake::initiate(&ClusterKey([7; 32]), b"", &mut rng);
        let mut responder = Handshake::respond(&ClusterKey([8; 32]), b"", &mut rng);
        let mut message = Vec::new();
        initiator.write(b"hello", &mut message);
        assert_eq!(responder.read(&message, &mut [0; 64]), None);
    }

    #[test]
    fn the_checksum_is_that_of_the_wire_format() {
        let bytes: Vec<u8> = (0..100).collect();
        // The format's own words: four lanes take eight bytes each in turn, and zeros to the end of
        // the last turn, of which there is always one more.
        let plainly = |bytes: &[u8]| {
            const K: u64 = 0x9e37_79b9_7f4a_7c15;
            let mut lanes = [bytes.len() as u64, K, !K, K.rotate_left(32)];
            let mut padded = bytes.to_vec();
            padded.resize((bytes.len() / 32 + 1) * 32, 0);
            for (index, word) in padded.chunks(8).enumerate() {
                let lane = &mut lanes[index % 4];
                *lane = (*lane ^ u64::from_le_bytes(word.try_into().unwrap())).wrapping_mul(K).rotate_left(29);
            }
            lanes.iter().fold(0, |sum: u64, lane| (sum ^ lane ^ lane >> 31).wrapping_mul(K).rotate_left(27))
        };
        for len in 0..=bytes.len() {
            assert_eq!(checksum(&bytes[..len]), plainly(&bytes[..len]), "{len} bytes");
        }
        assert_eq!(checksum(&[]), CHECKSUM_OF_NOTHING);
    }

    #[test]
    fn lent_bytes_are_left_out_and_everything_else_is_covered() {
        let mut plain = Seal::Plain;
        let mut short = vec![3; 200];
        let len = plain.seal(1, &mut short, 60, (40, 500));
        assert_eq!(len, 60, "nothing stands behind the body");
        let packet = [&short[..40], &[9; 500], &short[40..len]].concat();
        assert_eq!(plain.open(1, &mut packet.clone()), Some(&packet[plain.body_at()..]));
        for at in 0..packet.len() {
            let mut damaged = packet.clone();
            damaged[at] ^= 4;
            assert_eq!(plain.open(1, &mut damaged).is_some(), (40..540).contains(&at), "byte {at}");
        }
        // A start or length beyond the packet is refused, whatever it sums to.
        for (at, lent) in [(u32::MAX, 1), (30, u32::MAX), (560, 9)] {
            let mut wild = packet.clone();
            wild[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&at.to_le_bytes());
            wild[HEADER_BYTES + 4..SUM.start].copy_from_slice(&lent.to_le_bytes());
            assert_eq!(plain.open(1, &mut wild), None);
        }
    }
}
