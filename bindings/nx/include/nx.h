/* The message passing of NX, as on the Intel Paragon under OSF/1, for the processes of a job.
 *
 * A plain call, csend(), ends all processes of the application with a message when something is
 * wrong. Its form with an underscore, _csend(), gives -1 instead, and sets errno: EINVAL for a
 * node, type, process type, selector or length that there is not, EMSGSIZE for a message that is
 * longer than its buffer, EBADF for an id that is used up, EAGAIN when there are no more ids,
 * EFAULT for NULL, ECONNRESET when a process that is waited for has gone, ECANCELED when another
 * process has ended all, ETIMEDOUT when nothing came for an hour or a handler does not return,
 * ESRCH for a node without a process, ENOTCONN in a process that is no node, EBUSY for a second
 * application, ECHILD without one, EIO else. nx_perror() prints what is wrong in words.
 *
 * msginfo, eight longs, has the type, the bytes, the node and the process type of the last message
 * that was received or found.
 *
 * Types are 0 to 1999999999, process types 0 to 65535. Arguments of an application are checked
 * before anything happens. Memory given to a call is used until it returns, or until its message is
 * over, and must not be used by others meanwhile. A program starts by `vmmc run -n N -- PROGRAM`,
 * or by nx_initve() and nx_nfork(). docs/nx.md tells more. */

#ifndef NX_H
#define NX_H

#ifdef __cplusplus
extern "C" {
#endif

/**
 * What is known of the last message that was received or found by a call without an `info` of its
 * own: type, bytes, node and process type of the sender, and zeros.
 */
extern long msginfo[8];

/**
 * A handler of a message: type, bytes, node, process type.
 */
typedef void (*nx_handler)(long type, long count, long node, long ptype);
/**
 * The same, with the parameter that was given.
 */
typedef void (*nx_xhandler)(long type, long count, long node, long ptype, long hparam);
/**
 * A handler of hsendx(): the parameter that was given.
 */
typedef void (*nx_sent_handler)(long hparam);
/**
 * A function for gopf(): makes of `x` and `work` one, in `x`. Its result is not looked at.
 */
typedef long (*nx_function)(void *x, void *work);

/**
 * Sends a message of `count` bytes to the process of this type on a node. On return the memory may
 * be used again; that says nothing of whether it was received. Node -1 is all other nodes.
 */
void csend(long type, const void *buf, long count, long node, long ptype);
/**
 * As csend(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _csend(long type, const void *buf, long count, long node, long ptype);

/**
 * Receives a message of a type, -1 for any; waits for one. What is known of it is then in msginfo.
 * A message that is longer than `count` is an error, and is lost.
 */
void crecv(long typesel, void *buf, long count);
/**
 * As crecv(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _crecv(long typesel, void *buf, long count);

/**
 * Receives a message of a type, a node and a process type, each -1 for any. `info` becomes its
 * type, its bytes, its sender's node and process type, and four zeros; it may be msginfo, or NULL.
 */
void crecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, long info[8]);
/**
 * As crecvx(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _crecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, long info[8]);

/**
 * Sends a message and receives another one, in whatever order others do it. Gives the bytes of the
 * one received. The two buffers do not overlap.
 */
long csendrecv(long type, const void *sbuf, long scount, long node, long ptype, long typesel,
               void *rbuf, long rcount);
/**
 * As csendrecv(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _csendrecv(long type, const void *sbuf, long scount, long node, long ptype, long typesel,
                void *rbuf, long rcount);

/**
 * Begins to send a message; gives its id. The memory stays as it is until the message is over,
 * which msgwait(), msgdone() or msgcancel() say.
 */
long isend(long type, const void *buf, long count, long node, long ptype);
/**
 * As isend(), but an error does not end the program: gives its result, or -1 on an error, and sets
 * errno.
 */
long _isend(long type, const void *buf, long count, long node, long ptype);

/**
 * Begins to receive a message of a type, -1 for any; gives its id. The memory is the call's until
 * the message is over. What is known of it is in msginfo when msgwait() or msgdone() say so.
 */
long irecv(long typesel, void *buf, long count);
/**
 * As irecv(), but an error does not end the program: gives its result, or -1 on an error, and sets
 * errno.
 */
long _irecv(long typesel, void *buf, long count);

/**
 * Begins to receive a message of a type, a node and a process type, each -1 for any; gives its id.
 * `info` is as for crecvx(), and is written when the message is over.
 */
long irecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, long info[8]);
/**
 * As irecvx(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _irecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, long info[8]);

/**
 * Begins to send a message and to receive another one; gives one id for both.
 */
long isendrecv(long type, const void *sbuf, long scount, long node, long ptype, long typesel,
               void *rbuf, long rcount);
/**
 * As isendrecv(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _isendrecv(long type, const void *sbuf, long scount, long node, long ptype, long typesel,
                void *rbuf, long rcount);

/**
 * Waits until the message of an id is over. The id is used up.
 */
void msgwait(long id);
/**
 * As msgwait(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _msgwait(long id);

/**
 * Gives 1 if the message of an id is over, and the id is then used up; else 0.
 */
long msgdone(long id);
/**
 * As msgdone(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _msgdone(long id);

/**
 * Lets an id go. Its message goes on, and its memory is in use until that is over.
 */
void msgignore(long id);
/**
 * As msgignore(), but an error does not end the program: gives 0, or -1 on an error, and sets
 * errno.
 */
long _msgignore(long id);

/**
 * Takes a message back if nothing has happened yet, else waits until it is over. The id is used
 * up, and its memory is free.
 */
void msgcancel(long id);
/**
 * As msgcancel(), but an error does not end the program: gives 0, or -1 on an error, and sets
 * errno.
 */
long _msgcancel(long id);

/**
 * Gives one id for the messages of two, which are used up. If one of them is -1, it is the other.
 * That its arguments are these is less certain than for most calls.
 */
long msgmerge(long id1, long id2);
/**
 * As msgmerge(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _msgmerge(long id1, long id2);

/**
 * Begins to send a message; the handler is called when its memory is free, with the type, count,
 * node and process type given here. Handlers run on a thread of the library, one at a time, while
 * the program goes on; see masktrap().
 */
void hsend(long type, const void *buf, long count, long node, long ptype, nx_handler handler);
/**
 * As hsend(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _hsend(long type, const void *buf, long count, long node, long ptype, nx_handler handler);

/**
 * Begins to receive a message of a type, -1 for any; the handler is called when it has come, with
 * its type, its bytes, its sender's node and process type. It is called once; it may begin the
 * next one.
 */
void hrecv(long typesel, void *buf, long count, nx_handler handler);
/**
 * As hrecv(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _hrecv(long typesel, void *buf, long count, nx_handler handler);

/**
 * Begins to send a message and to receive another one; the handler is called when both are over,
 * as for hrecv().
 */
void hsendrecv(long type, const void *sbuf, long scount, long node, long ptype, long typesel,
               void *rbuf, long rcount, nx_handler handler);
/**
 * As hsendrecv(), but an error does not end the program: gives 0, or -1 on an error, and sets
 * errno.
 */
long _hsendrecv(long type, const void *sbuf, long scount, long node, long ptype, long typesel,
                void *rbuf, long rcount, nx_handler handler);

/**
 * Begins to send a message; the handler is called with `hparam` when its memory is free. That its
 * arguments are these is less certain than for most calls.
 */
void hsendx(long type, const void *buf, long count, long node, long ptype, nx_sent_handler xhandler,
            long hparam);
/**
 * As hsendx(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _hsendx(long type, const void *buf, long count, long node, long ptype,
             nx_sent_handler xhandler, long hparam);

/**
 * Begins to receive a message of a type, a node and a process type, each -1 for any; the handler
 * is called as for hrecv(), with `hparam` behind the other arguments.
 */
void hrecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, nx_xhandler xhandler,
            long hparam);
/**
 * As hrecvx(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _hrecvx(long typesel, void *buf, long count, long nodesel, long ptypesel, nx_xhandler xhandler,
             long hparam);

/**
 * Has handlers wait (1) or lets them go on (0); gives what was before. With 1, none runs when it
 * has returned. In a handler it is a mask of its own, which holds while it runs. One that does not
 * return within a minute is an error.
 */
long masktrap(long state);
/**
 * As masktrap(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _masktrap(long state);

/**
 * Waits for a message of a type, -1 for any. It stays; what is known of it is in msginfo.
 */
void cprobe(long typesel);
/**
 * As cprobe(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _cprobe(long typesel);

/**
 * Waits for a message of a type, a node and a process type, each -1 for any. It stays; `info` is
 * as for crecvx(). That its arguments are these is less certain than for most calls.
 */
void cprobex(long typesel, long nodesel, long ptypesel, long info[8]);
/**
 * As cprobex(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _cprobex(long typesel, long nodesel, long ptypesel, long info[8]);

/**
 * Gives 1 if a message of a type, -1 for any, has come and was not received, else 0. It stays;
 * what is known of it is in msginfo.
 */
long iprobe(long typesel);
/**
 * As iprobe(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _iprobe(long typesel);

/**
 * Gives 1 if a message of a type, a node and a process type, each -1 for any, has come and was not
 * received, else 0. It stays; `info` is as for crecvx().
 */
long iprobex(long typesel, long nodesel, long ptypesel, long info[8]);
/**
 * As iprobex(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _iprobex(long typesel, long nodesel, long ptypesel, long info[8]);

/**
 * Gives the bytes of the message that msginfo tells of.
 */
long infocount(void);
/**
 * As infocount(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _infocount(void);

/**
 * Gives the node of the sender of the message that msginfo tells of.
 */
long infonode(void);
/**
 * As infonode(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _infonode(void);

/**
 * Gives the type of the message that msginfo tells of.
 */
long infotype(void);
/**
 * As infotype(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _infotype(void);

/**
 * Gives the process type of the sender of the message that msginfo tells of.
 */
long infoptype(void);
/**
 * As infoptype(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _infoptype(void);

/**
 * Drops messages of a type, a node and a process type, each -1 for any, that have come and were
 * not received.
 */
void flushmsg(long typesel, long nodesel, long ptypesel);
/**
 * As flushmsg(), but an error does not end the program: gives 0, or -1 on an error, and sets
 * errno.
 */
long _flushmsg(long typesel, long nodesel, long ptypesel);

/**
 * Gives the node of this process.
 */
long mynode(void);
/**
 * As mynode(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _mynode(void);

/**
 * Gives the number of nodes of the application.
 */
long numnodes(void);
/**
 * As numnodes(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _numnodes(void);

/**
 * Gives the process type of this process, which is 0 until setptype() or nx_nfork() say otherwise.
 */
long myptype(void);
/**
 * As myptype(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _myptype(void);

/**
 * Gives this process a process type, from 0 to 65535. Messages for the one before are no longer
 * for it.
 */
void setptype(long ptype);
/**
 * As setptype(), but an error does not end the program: gives 0, or -1 on an error, and sets
 * errno.
 */
long _setptype(long ptype);

/**
 * Gives seconds since the first look at a clock of this library.
 */
double dclock(void);
/**
 * As dclock(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
double _dclock(void);

/**
 * Gives milliseconds since the first look at a clock of this library.
 */
unsigned long mclock(void);
/**
 * As mclock(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
unsigned long _mclock(void);

/**
 * Waits until all processes of the application have called it.
 */
void gsync(void);
/**
 * As gsync(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gsync(void);

/**
 * Makes `n` values of each process, of double, the sums over all processes, one by one; all have
 * the result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void gdsum(double x[], long n, double work[]);
/**
 * As gdsum(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gdsum(double x[], long n, double work[]);

/**
 * Makes `n` values of each process, of double, the products over all processes, one by one; all
 * have the result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void gdprod(double x[], long n, double work[]);
/**
 * As gdprod(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gdprod(double x[], long n, double work[]);

/**
 * Makes `n` values of each process, of double, the greatest over all processes, one by one; all
 * have the result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void gdhigh(double x[], long n, double work[]);
/**
 * As gdhigh(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gdhigh(double x[], long n, double work[]);

/**
 * Makes `n` values of each process, of double, the least over all processes, one by one; all have
 * the result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void gdlow(double x[], long n, double work[]);
/**
 * As gdlow(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gdlow(double x[], long n, double work[]);

/**
 * Makes `n` values of each process, of single precision, the sums over all processes, one by one;
 * all have the result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void gssum(float x[], long n, float work[]);
/**
 * As gssum(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gssum(float x[], long n, float work[]);

/**
 * Makes `n` values of each process, of single precision, the products over all processes, one by
 * one; all have the result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void gsprod(float x[], long n, float work[]);
/**
 * As gsprod(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gsprod(float x[], long n, float work[]);

/**
 * Makes `n` values of each process, of single precision, the greatest over all processes, one by
 * one; all have the result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void gshigh(float x[], long n, float work[]);
/**
 * As gshigh(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gshigh(float x[], long n, float work[]);

/**
 * Makes `n` values of each process, of single precision, the least over all processes, one by one;
 * all have the result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void gslow(float x[], long n, float work[]);
/**
 * As gslow(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gslow(float x[], long n, float work[]);

/**
 * Makes `n` values of each process, of long, the sums over all processes, one by one; all have the
 * result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void gisum(long x[], long n, long work[]);
/**
 * As gisum(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gisum(long x[], long n, long work[]);

/**
 * Makes `n` values of each process, of long, the products over all processes, one by one; all have
 * the result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void giprod(long x[], long n, long work[]);
/**
 * As giprod(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _giprod(long x[], long n, long work[]);

/**
 * Makes `n` values of each process, of long, the greatest over all processes, one by one; all have
 * the result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void gihigh(long x[], long n, long work[]);
/**
 * As gihigh(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gihigh(long x[], long n, long work[]);

/**
 * Makes `n` values of each process, of long, the least over all processes, one by one; all have
 * the result in `x`, with the same bits. `work` is not used, and may be NULL.
 */
void gilow(long x[], long n, long work[]);
/**
 * As gilow(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gilow(long x[], long n, long work[]);

/**
 * Makes `n` values of each process the bits that all have, one by one; all have the result in `x`.
 * `work` is not used, and may be NULL.
 */
void giand(long x[], long n, long work[]);
/**
 * As giand(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _giand(long x[], long n, long work[]);

/**
 * Makes `n` values of each process the bits that any has, one by one; all have the result in `x`.
 * `work` is not used, and may be NULL.
 */
void gior(long x[], long n, long work[]);
/**
 * As gior(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gior(long x[], long n, long work[]);

/**
 * Makes `n` values of each process the bits that an odd number has, one by one; all have the
 * result in `x`. `work` is not used, and may be NULL.
 */
void gixor(long x[], long n, long work[]);
/**
 * As gixor(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gixor(long x[], long n, long work[]);

/**
 * Makes `n` values of each process 1 if they are true for all, that is not 0, else 0, one by one;
 * all have the result in `x`. `work` is not used, and may be NULL.
 */
void gland(long x[], long n, long work[]);
/**
 * As gland(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gland(long x[], long n, long work[]);

/**
 * Makes `n` values of each process 1 if they are true for any, that is not 0, else 0, one by one;
 * all have the result in `x`. `work` is not used, and may be NULL.
 */
void glor(long x[], long n, long work[]);
/**
 * As glor(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _glor(long x[], long n, long work[]);

/**
 * Makes `n` values of each process 1 if they are true for an odd number of them, that is not 0,
 * else 0, one by one; all have the result in `x`. `work` is not used, and may be NULL.
 */
void glxor(long x[], long n, long work[]);
/**
 * As glxor(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _glxor(long x[], long n, long work[]);

/**
 * Puts `xlen` bytes of each process one behind the other, in the order of nodes, into `y` of all;
 * `ncnt` becomes their number. Each process may have another number of bytes. If there is not room
 * for them in `y` of all processes, all have the error.
 */
void gcol(const void *x, long xlen, void *y, long ylen, long *ncnt);
/**
 * As gcol(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gcol(const void *x, long xlen, void *y, long ylen, long *ncnt);

/**
 * Puts bytes of all processes one behind the other, in the order of nodes, into `y` of all.
 * `xlens` has the number of bytes of each.
 */
void gcolx(const void *x, const long xlens[], void *y);
/**
 * As gcolx(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gcolx(const void *x, const long xlens[], void *y);

/**
 * Combines `xlen` bytes of all processes by a function, which makes of its two arguments one, in
 * the first. The second has `work`, of `xlen` bytes too; it has what is of later nodes. How they
 * are grouped must not matter. That its arguments are these is less certain than for most calls.
 */
void gopf(void *x, long xlen, void *work, nx_function function);
/**
 * As gopf(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gopf(void *x, long xlen, void *work, nx_function function);

/**
 * Sends a message to a list of nodes, to processes of this one's type.
 */
void gsendx(long type, const void *x, long xlen, const long nodes[], long n);
/**
 * As gsendx(), but an error does not end the program: gives 0, or -1 on an error, and sets errno.
 */
long _gsendx(long type, const void *x, long xlen, const long nodes[], long n);

/**
 * Has nodes for an application; gives how many. `size` 0 or -1 is as many as there are processors;
 * `-sz N` among the arguments of the program comes first, and is taken out of them. `partition`
 * names nodes of VMMC, separated by commas; NULL or empty is the user's own. `account` is not
 * used. In a process that nx_nfork() or `vmmc run` has started it gives the nodes that there are.
 */
long nx_initve(const char *partition, long size, const char *account, int *argc, char *argv[]);
/**
 * As nx_initve(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _nx_initve(const char *partition, long size, const char *account, int *argc, char *argv[]);

/**
 * Starts this program on nodes, on all with `n` -1; gives the number of processes, and their ids
 * in `pids` if that is not NULL. The program begins there with main(), not with this call, which
 * returns 0 there. A process starts one application.
 */
long nx_nfork(const long nodes[], long n, long ptype, long pids[]);
/**
 * As nx_nfork(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _nx_nfork(const long nodes[], long n, long ptype, long pids[]);

/**
 * Starts another program on nodes, without arguments; else as nx_nfork(). That its arguments are
 * these is less certain than for most calls.
 */
long nx_load(const long nodes[], long n, long ptype, long pids[], const char *path);
/**
 * As nx_load(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _nx_load(const long nodes[], long n, long ptype, long pids[], const char *path);

/**
 * Waits until all processes that this one has started have ended; gives how many have failed,
 * which are named on standard error.
 */
long nx_waitall(void);
/**
 * As nx_waitall(), but an error does not end the program: gives its result, or -1 on an error, and
 * sets errno.
 */
long _nx_waitall(void);

/**
 * Gives the nodes of the application and their number; the list is to be freed by free(). `pgroup`
 * is not used.
 */
long nx_app_nodes(long pgroup, long **nodes, unsigned long *count);
/**
 * As nx_app_nodes(), but an error does not end the program: gives its result, or -1 on an error,
 * and sets errno.
 */
long _nx_app_nodes(long pgroup, long **nodes, unsigned long *count);

/**
 * Prints what was wrong with the last call of this thread that gave -1, behind `before` and a
 * colon if that is not NULL.
 */
void nx_perror(const char *before);

#ifdef __cplusplus
}
#endif

#endif /* NX_H */
