//! Credentials and verifiers.
//!
//! Invariant: a credential is a claim of who sends it. Who else knows the sender compares. Source:
//! RFC 5531 §8.2, §9, appendix A.

use crate::limits::{AUTH_BYTES_MAX, GROUPS_MAX, MACHINE_NAME_BYTES_MAX};
use crate::xdr::{Decoder, Encoder, Malformed};

/// Numbers of the ways to authenticate.
pub mod flavor {
    /// Nobody in particular.
    pub const AUTH_NONE: u32 = 0;
    /// A user and groups, as the caller says.
    pub const AUTH_SYS: u32 = 1;
    /// A short hand of the server's for an AUTH_SYS credential.
    pub const AUTH_SHORT: u32 = 2;
    /// Diffie-Hellman.
    pub const AUTH_DH: u32 = 3;
    /// GSS, as Kerberos is.
    pub const RPCSEC_GSS: u32 = 6;
}

/// A credential or verifier of some flavor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpaqueAuth {
    /// See [`flavor`]. Any number may come.
    pub flavor: u32,
    /// Up to 400 bytes.
    pub body: Vec<u8>,
}

/// The body of an AUTH_SYS credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthSys {
    /// Any number of the caller's.
    pub stamp: u32,
    /// Name of the caller's machine, up to 255 bytes.
    pub machine: String,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Further groups, up to 16.
    pub gids: Vec<u32>,
}

impl OpaqueAuth {
    /// AUTH_NONE.
    pub fn none() -> OpaqueAuth {
        OpaqueAuth { flavor: flavor::AUTH_NONE, body: Vec::new() }
    }

    pub(crate) fn encode(&self, out: &mut Encoder) {
        out.u32(self.flavor).counted(&self.body);
    }

    pub(crate) fn decode(from: &mut Decoder<'_>, what: &'static str) -> Result<OpaqueAuth, Malformed> {
        Ok(OpaqueAuth { flavor: from.u32(what)?, body: from.counted(what, AUTH_BYTES_MAX)?.to_vec() })
    }
}

impl AuthSys {
    /// As a credential. A name that is too long, and groups that are too many, are cut off.
    pub fn to_auth(&self) -> OpaqueAuth {
        let end =
            (0..=self.machine.len().min(MACHINE_NAME_BYTES_MAX)).rev().find(|at| self.machine.is_char_boundary(*at));
        let gids = &self.gids[..self.gids.len().min(GROUPS_MAX)];
        let mut out = Encoder::new();
        out.u32(self.stamp).counted(&self.machine.as_bytes()[..end.unwrap_or(0)]);
        out.u32(self.uid).u32(self.gid).u32(gids.len() as u32);
        gids.iter().for_each(|gid| _ = out.u32(*gid));
        OpaqueAuth { flavor: flavor::AUTH_SYS, body: out.into_bytes() }
    }

    /// Of a credential of that flavor.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn from_auth(auth: &OpaqueAuth) -> Result<AuthSys, Malformed> {
        if auth.flavor != flavor::AUTH_SYS {
            return Err(Malformed::Value { what: "an AUTH_SYS credential of flavor", value: auth.flavor });
        }
        let mut from = Decoder::new(&auth.body);
        let (stamp, machine) = (from.u32("stamp")?, from.string("machine's name", MACHINE_NAME_BYTES_MAX)?.to_string());
        let (uid, gid) = (from.u32("user")?, from.u32("group")?);
        let count = from.count("list of groups", GROUPS_MAX)?;
        let gids = (0..count).map(|_| from.u32("list of groups")).collect::<Result<_, _>>()?;
        from.end("AUTH_SYS credential")?;
        Ok(AuthSys { stamp, machine, uid, gid, gids })
    }
}
