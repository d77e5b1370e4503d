"""Calls written once and evaluated with torch and with this package, which is `m`."""

from __future__ import annotations

from typing import Any

nan, inf = float("nan"), float("inf")


def names(m: Any) -> dict[str, Any]:
    """What the calls refer to."""
    t = m.tensor
    return {
        "m": m,
        "F": m.nn.functional,
        "inf": inf,
        "n": nan,
        "i": t([7, -7, 5]),
        "i32": t([7, -7, 5], dtype=m.int32),
        "zi": t([1, 0, 2]),
        "p": t([True, False, True]),
        "u": t([1, 0, 200], dtype=m.uint8),
        "x": t([1.5, -2.0, 0.0]),
        "y": t([nan, inf, -inf, -0.0, 1e-9, 2.5, 3.5, -2.5, 200.0]),
        "y6": t([nan, inf, -inf, -0.0, 1e-9, 2.5], dtype=m.float64),
        "e": m.zeros(0, 3),
        "z": t(-3.0),
        "xg": t([1.5, -2.0, 0.0], requires_grad=True),
        "M": t([[1.5, -2, 0.25], [4, 0, -1]]),
        "M3": m.arange(-7.0, 17).reshape(2, 4, 3),
        "a": t([[1.5, -2, 0.25], [4, 0, -1]]),
        "b": m.arange(12.0).reshape(3, 4) - 5,
        "v": t([1.0, 2, -3]),
        "S": m.arange(9.0).reshape(3, 3) - 4,
        "B": m.arange(24.0).reshape(2, 4, 3) * 0.5 - 3,
        "C": m.arange(27.0).reshape(3, 3, 3) - 10,
        "D": m.arange(30.0).reshape(2, 5, 3) / 7,
    }


_UNARY = (
    *("floor", "ceil", "trunc", "frac", "sign", "square", "reciprocal", "rsqrt", "round"),
    *("log1p", "expm1", "exp2", "log2", "log10", "tan", "asin", "acos", "atan", "sinh", "cosh"),
    *("isnan", "isinf", "isfinite", "logical_not", "nan_to_num"),
)
_IN_PLACE = [f for f in _UNARY if not f.startswith("is") and f != "logical_not"]
_IN_PLACE += ["exp", "log", "sqrt", "tanh", "sigmoid", "sin", "cos", "neg", "abs"]
_PAIRS = (("u", "i32"), ("p", "i"), ("x", "y6[:3]"), ("z", "i"), ("u", "-2.5"), ("y[:3]", "2"))
_BINARY = (
    "{}//{}",
    "{}%{}",
    "m.fmod({},{})",
    "m.div({},{},rounding_mode='trunc')",
    "m.ge({},{})",
    "m.ne({},{})",
    "m.logical_xor({},{})",
    "m.logical_and({},{})",
    "m.logical_or({},{})",
    "m.isclose({},{})",
    "m.clamp_min({},{})",
    "{}.clone().remainder_({})",
    "m.lerp({},{},0.3)",
    "m.addcmul({0},{1},{0},value=2)",
    "m.addcdiv({0},{0},{1},value=3)",
)
_WHOLE = ("floor", "frac", "sign", "square", "reciprocal", "round", "log1p", "isinf", "nan_to_num")
ELEMENTWISE = [f"m.{f}({v})" for f in _UNARY for v in "ye"]
ELEMENTWISE += [f"m.{f}({v})" for f in _WHOLE for v in "ipz"]
ELEMENTWISE += [f"{'ix'[n % 2]}.clone().{f}_()" for n, f in enumerate(_IN_PLACE)]
ELEMENTWISE += [f.format(*pair) for f in _BINARY for pair in _PAIRS]
ELEMENTWISE += """
m.round(x,decimals=1)
m.round(y,decimals=2)
m.round(y,decimals=-2)
m.round(i,decimals=1)
m.lerp(x,x+1,m.tensor([.2,.7,.5]))
m.lerp(x,x+1,.7)
m.lerp(x,x+1,m.tensor(.7).double())
m.lerp(x,3,.5)
m.lerp(x,x,i)
m.lerp(i,i,i)
x.lerp(x,'a')
m.isclose(x,x,rtol=-1)
m.isclose(y,y,equal_nan=True)
m.isclose(y,y)
m.isclose(x,x+1e-6)
m.isclose(x,x,0,0)
m.isclose(i,i+1,rtol=1)
m.isclose(x,3)
m.nan_to_num(y,1.,2.,3.)
m.nan_to_num(y,posinf=1e39)
m.nan_to_num(x,nan='a')
m.div(x,2,rounding_mode='x')
x.div(2,rounding_mode=3)
x.round(decimals='a')
m.clip(x,0,1)
i.div(2,rounding_mode='floor')
i//0
i%0
i//zi
m.fmod(i,zi)
zi//zi
i/0
x//0
x%0
i//0.
u%-2
u//-2
7//i
7.5//i
7.5%i
7%zi
m.remainder(5,5)
m.fmod(5,i)
m.fmod(i,'a')
i//'a'
i%None
m.eq(3,i)
m.eq(i,'a')
i.eq(i)
m.logical_and(i,3)
m.sign(3)
m.addcmul(x,x,'a')
m.addcmul(x,x,x,value='a')
m.addcdiv(x,x,3)
m.addcdiv(i,i,i)
m.addcmul(i,i,i,value=2.5)
i.clone().pow_(2)
i.clone().pow_(0.5)
p.neg_()
i.clone().exp_()
x.clone().floor_divide_(2)
x.clone().clamp_min_(0.).clamp_max_(1)
x.clone().lerp_(x+1,0.2).addcmul_(x,x).addcdiv_(x,x+9,value=2)
i.clone().masked_fill_(p,2)
xg.exp_()
m.clamp_min(x,'a')
m.clamp_max(x,i)
p.clamp_min(0)
m.square(p)
x.div_(0.7,rounding_mode='floor')
i.clone().div_(2,rounding_mode='trunc')
x.clone().fmod_(1)
y.clone().nan_to_num_(0.5)
m.floor('a')
m.rsqrt(z)
m.remainder(x,m.tensor([[1.],[2.]]))
m.exp2(m.arange(-10,11.))
m.log2(2.**m.arange(-10,11.))
m.log10(m.tensor([1.,10,100,1000,1e4,1e5,1e10]))
""".strip().splitlines()
_ONE = ("acosh", "asinh", "atanh", "erfc", "erfinv", "logit", "deg2rad", "rad2deg", "sgn", "sinc")
_SIGNS = ("signbit", "isposinf", "isneginf")
_TWO = ("atan2", "hypot", "logaddexp", "logaddexp2", "fmax", "fmin", "ldexp", "heaviside")
_NUMBER = ("xlogy", "copysign", "float_power")
_TENSORS = (*_PAIRS[:4], ("y6[:,None]", "y6"), ("x", "e"), ("p", "p"), ("i", "i"), ("u", "u"))
_TENSORS += (("x", "3"), ("3", "x"), ("x", "'a'"), ("x", "x.double()[0]"))
_MORE = (("3", "x"), ("x", "-2.0"), ("2", "3"), ("i", "-1"), ("x", "n"), ("z*0", "0"), ("y", "0"))
SPECIAL = [f"m.{f}({v})" for f in _ONE[:9] + _SIGNS for v in ("y", "y6", "i", "p", "u", "e", "3")]
SPECIAL += [f"x.clone().{f}_()" for f in _ONE[:9]] + [f"i.clone().{f}_()" for f in _ONE]
SPECIAL += [f"m.{f}({a},{b})" for f in _TWO for a, b in _TENSORS]
SPECIAL += [f"m.{f}({a},{b})" for f in _NUMBER for a, b in _TENSORS + _MORE]
SPECIAL += [
    f"{a}.clone().{f}_({b})"
    for f in ("atan2", "hypot", "ldexp", "heaviside", *_NUMBER)
    for a, b in (("x", "x+1"), ("i", "x"), ("x", "i"), ("y6", "y6"), ("x", "M"), ("i", "i"))
]
SPECIAL += """
m.lgamma(y)
m.lgamma(y6)
m.lgamma(i)
m.lgamma(p)
m.lgamma(3)
m.digamma(y[3:])
m.digamma(y6)
m.digamma(i)
m.digamma(m.arange(-5.,5.)/3)
x.clone().lgamma_()
i.clone().digamma_()
m.nextafter(x,x+1)
m.nextafter(y6[:,None],y6)
m.nextafter(x,y6[:3])
m.nextafter(i,i)
m.nextafter(x,3)
m.nextafter(x,i)
x.nextafter('a')
x.clone().nextafter_(x*2)
m.sinc(x[:2])
m.sinc(y[-5:]+0.3)
m.sinc(y6)
m.arccosh(y)
m.arcsinh('a')
m.arctanh(i)
x.clone().arcsinh_()
x.clone().arccosh_()
x.clone().arctanh_()
m.arctan2(x,y[:3])
m.arctan2(x,2)
x.arctan2('a')
x.clone().arctan2_(x)
x.atan2(3)
x.hypot('a')
x.fmax('a')
x.fmin(2)
x.ldexp('a')
x.heaviside(0.5)
x.heaviside(i)
m.heaviside(y,m.tensor(0.5))
m.heaviside(x,m.tensor([[1.],[2.]]))
m.heaviside(M,m.tensor(n))
m.logit(x,0.1)
m.logit(y,0.6)
m.logit(y,-0.1)
m.logit(y,0.)
m.logit(y,1.)
m.logit(x,eps='a')
x.logit(0.25)
x.clone().logit_(0.25)
x.xlogy('a')
x.copysign('a')
x.float_power('a')
x.double().float_power_(2)
x.double().float_power_('a')
m.copysign(x,y[3])
m.copysign(y,-0.0)
m.copysign(i,-2)
m.signbit(-y)
m.ldexp(m.tensor([1e-10,1e10,0.,1e-45,inf,1.]),m.tensor([130,-140,1000,277,-1000,-149]))
m.ldexp(y6[3:],i32*100)
m.hypot(m.tensor([3e30,3e-30]),m.tensor([4e30,4e-30]))
m.hypot(y[1],y[0])
m.logaddexp(y[:4],m.tensor([1.,inf,-inf,-0.]))
m.logaddexp2(y,y)
m.logaddexp(x*1e4,x)
m.atan2(y[None],y[:,None])
m.fmax(y[None],y[:,None])
m.fmin(y[None],y[:,None])
m.copysign(y[None],y[:,None])
m.xlogy(y[None],y[:,None])
m.float_power(y[None],y[:,None])
m.float_power(p,2)
m.float_power(i32,-1)
m.float_power(i,p)
m.celu(x)
m.celu(x,0.5)
m.celu('a')
m.celu(x,0.)
m.selu(x)
m.selu(i)
m.threshold(x,1,3)
m.threshold(i,1,3)
m.threshold('a',1,2)
m.hardshrink(x)
m.hardshrink(x,1.6)
m.hardshrink(i)
m.hardshrink('a')
x.hardshrink(lambd=1.6)
i.hardshrink()
m.prelu(x,m.tensor([.5]))
m.prelu(M,x)
m.prelu(x,x[:2])
m.prelu(x,3)
m.prelu(3,x)
x.prelu(m.tensor(.5))
M.prelu(x)
M.prelu(3)
x.prelu(i)
z.prelu(x)
x.prelu(M)
i.prelu(i)
""".strip().splitlines()
_BITS = [f"bitwise_{how}" for how in ("and", "or", "xor", "left_shift", "right_shift")]
_BIT_PAIRS = (*(("u", "i32"), ("p", "i"), ("p", "p"), ("i", "-3"), ("u", "300"), ("i32", "5")),)
_BIT_PAIRS += (("3", "i"), ("i", "True"), ("x", "i"), ("p", "2.5"), ("3", "4"), ("i", "'a'"))
BITS = [f"m.{f}({a},{b})" for f in _BITS for a, b in _BIT_PAIRS]
BITS += [f"i.clone().{f}_({v})" for f in _BITS for v in ("3", "u", "x", "2.5", "'a'", "i32")]
_ALIASES = ("subtract", "multiply", "divide", "true_divide")
_COMPARE = ("greater", "greater_equal", "less", "less_equal", "not_equal")
ALIASES = [
    f"m.{f}({a},{b})"
    for f in _ALIASES + _COMPARE
    for a, b in (*_PAIRS, ("3", "i"), ("x", "'a'"), ("'a'", "x"), ("p", "p"))
]
ALIASES += [f"i.{f}({v})" for f in _ALIASES + _COMPARE for v in ("x", "-2", "'a'", "M")]
ALIASES += [
    f"{x}.clone().{f}_({v})"
    for f in (*_ALIASES, *_COMPARE, "eq", "ne", "lt", "le", "gt", "ge")
    for x in "ixup"
    for v in ("1", "x", "p", "'a'", "M")
]
ALIASES += [
    f"{x}.clone().{f}_({v})"
    for f in ("logical_and", "logical_or", "logical_xor")
    for x in "ixp"
    for v in ("x", "u", "M", "3")
]
_OTHER = ("negative", "positive", "absolute", "fix", "arccos", "arcsin", "arctan")
ALIASES += [f"m.{f}({v})" for f in _OTHER for v in ("y", "i", "p", "e", "3")]
ALIASES += [f"{v}.clone().{f}_()" for f in (*_OTHER[:1], *_OTHER[2:], "erf") for v in "xip"]
ALIASES += """
m.mul(3,x)
m.sub(3,x)
m.add(3,x)
m.add(True,p)
m.sub(2.5,i)
m.div(3,x)
m.div(3,i,rounding_mode='floor')
m.div(3,i,rounding_mode='x')
m.mul('a',x)
m.add(x,'a')
m.sub('a',x)
m.add(3,x,alpha=2)
m.sub(3,x,alpha=2)
m.sub(3,i,alpha=2.5)
m.sub(3,x,alpha='a')
m.subtract(3,i,alpha=2.5)
x.gt('a')
x.ge(None)
x.eq('a')
x.ne([1])
x.lt(i)
x.le(2)
m.subtract(x,1,alpha=2)
m.subtract(3,x,alpha=2)
m.subtract(x,1,alpha='a')
m.subtract(i,i,alpha=2.5)
x.subtract(1,alpha='a')
x.clone().subtract_(i,alpha=3)
x.subtract_(1,alpha='a')
m.divide(x,2,rounding_mode='x')
m.divide(x,2,rounding_mode=3)
m.divide(3,i,rounding_mode='floor')
x.divide(2,rounding_mode=3)
x.clone().divide_(2,rounding_mode='trunc')
x.clone().divide_(2,rounding_mode=3)
x.clone().logical_not_()
i.clone().logical_not_()
p.clone().logical_not_()
+p
+x
x.clone().clip_(0,1)
x.clone().clip_(max=m.tensor(1))
xg.eq_(1)
(xg*1).gt_(1)
""".strip().splitlines()
BITS += """
i&3
3&i
True&p
p|True
p^p
p&i
u^-1
i&2.5
1|x
x^i
~i
~u
~p
~x
i<<2
i>>1
i<<m.tensor([1,70,-1])
i>>m.tensor([1,70,-1])
i<<63
i>>63
i>>64
i32<<31
i32<<32
i32>>m.tensor([40,40,-40])
u<<m.tensor([1,9,3],dtype=m.uint8)
u>>m.tensor([1,9,3],dtype=m.uint8)
u>>7
u<<i
2<<i
-200>>i
p<<1
p<<p
p>>p
1.5<<i
i<<2.5
x>>1
i&'a'
None^i
i<<[1]
i32&2**40
i.bitwise_not()
m.bitwise_not(3)
m.bitwise_not(x)
i.clone().bitwise_not_()
x.clone().bitwise_not_()
i.bitwise_and('a')
m.bitwise_and(i,2**70)
i.clone().__iand__(3)
i.clone().__ixor__(u)
i.clone().__ior__(p)
i.clone().__ilshift__(3)
i.clone().__irshift__(3)
p.clone().__iand__(i)
p.clone().__ior__(~p)
i.__rlshift__(2)
i.__rrshift__(200)
i[:,None]&i32
e.long()|3
z.int()^5
""".strip().splitlines()
REDUCTIONS = """
m.norm(i)
i.norm()
m.norm(x)
x.norm(1)
x.norm(0)
m.norm(y,0)
x.norm(inf)
y.norm(-inf)
x.norm(3)
x.norm(2.5)
x.norm(-2)
x.norm(0.5)
x[:2].norm(-1)
x.norm(p=None)
x.norm(2,0,True)
x.norm(2,-1)
M.norm(2,(0,1),True)
M.norm(1,dim=1)
M.norm(3,dim=[0])
z.norm()
z.norm(3)
z.norm(2,0,True)
z.norm(1,-1)
e.norm()
e.norm(inf)
e.norm(inf,dim=0)
e.norm(inf,dim=1)
e.norm(-1)
e.norm(dim=0)
m.norm(x,'x')
m.norm(x,p=[1])
m.norm(x,dim=2)
m.norm(x,dim='a')
m.norm(x,dtype=m.int64)
m.norm(x,dtype=m.float64)
m.norm(x.double(),dtype=m.float32)
y.norm()
m.linalg.norm(x,'fro')
m.linalg.norm(M,3)
m.linalg.norm(M,'x')
m.linalg.norm(M)
m.linalg.norm(M,'fro')
m.linalg.norm(M,1)
m.linalg.norm(M,-1)
m.linalg.norm(M,inf)
m.linalg.norm(M,-inf)
m.linalg.norm(M,0)
m.linalg.norm(M,2,1)
m.linalg.norm(M,2,(1,))
m.linalg.norm(M,1,(0,1),True)
m.linalg.norm(M,1,(1,0))
m.linalg.norm(M,inf,(1,0),True)
m.linalg.norm(m.ones(2,2,2),1)
m.linalg.norm(m.ones(2,2,2))
m.linalg.norm(m.ones(2,3,2),1,(0,1))
m.linalg.norm(m.ones(2,3,2),'fro',(0,1))
m.linalg.norm(m.ones(2,3,2),'fro',0)
m.linalg.norm(m.ones(2,3,2),None,(0,1,2))
m.linalg.norm(m.ones(2,3,2),1,(0,1,2))
m.linalg.norm(z,2)
m.linalg.norm(z)
m.linalg.norm(i)
m.linalg.norm(3)
m.linalg.vector_norm(i)
m.linalg.vector_norm(x,'fro')
m.linalg.vector_norm(x,2,(0,0))
m.linalg.vector_norm(M,4,(0,1))
m.linalg.vector_norm(M,4,())
m.linalg.vector_norm(x,dtype=m.int64)
m.linalg.matrix_norm(M)
m.linalg.matrix_norm(M,1,keepdim=True)
m.linalg.matrix_norm(x)
m.linalg.matrix_norm(M,dim=(0,))
M.prod((0,1))
M.prod()
M.prod(0)
M.prod(1,True)
M.prod(-1)
M3.prod(1)
M3.prod(0,keepdim=True)
m.prod(i)
p.prod()
p.prod(dtype=m.bool)
u.prod()
i.prod(dtype=m.float32)
i32.prod(0)
m.zeros(0).prod()
e.prod(0)
e.prod(1)
z.prod(0)
z.prod()
x.prod(1)
x.prod(0,True)
x.prod('a')
y.prod()
m.arange(1,12.).prod()
x.logsumexp(0)
i.logsumexp(0)
p.logsumexp(0)
e.logsumexp(0)
e.logsumexp(1)
M.logsumexp((0,1),True)
M.logsumexp(1)
m.logsumexp(M,-1,True)
z.logsumexp(0)
y[1:].logsumexp(0)
y[2:].logsumexp(0)
y.logsumexp(0)
(y*0-inf).logsumexp(0)
m.tensor([-inf,-inf]).logsumexp(0)
x.logsumexp(None)
x.logsumexp('a')
m.count_nonzero(x)
m.count_nonzero(M,dim=(0,1))
m.count_nonzero(M,0)
m.count_nonzero(M,5)
m.count_nonzero(y)
m.count_nonzero(z)
m.count_nonzero(p)
m.nansum(y)
m.nansum(i)
m.nansum(p)
m.nansum(m.tensor([n,1.]),0,dtype=m.int64)
m.nanmean(y6)
m.nanmean(m.tensor([[n,n],[1,n]]),1)
m.nanmean(i)
m.nanmean(x,dtype=m.float64)
m.var_mean(x)[0]
m.var_mean(M,1)[1]
m.std_mean(M,0,correction=0,keepdim=True)[0]
m.var_mean(i)
m.any(p)
m.all(p)
m.any(M,1)
m.all(M,0,True)
m.any(u)
m.all(u,0)
m.any(M,(0,1))
m.any(y)
m.all(e)
m.norm(x,'nuc')
""".strip().splitlines()
PRODUCTS = """
m.einsum('ij,jk->ik',a)
m.einsum('ij->ji',a,b)
m.einsum('ijk->i',a)
m.einsum('i->i',a)
m.einsum('ij,jk->il',a,b)
m.einsum('ij,jk->iik',a,b)
m.einsum('ij,ik->jk',a,b)
m.einsum('i1->i',a)
m.einsum('ij->i->j',a)
m.einsum('ij-i',a)
m.einsum('ij->i-',a)
m.einsum('i.j->i',a)
m.einsum('...i,...i->...',a,a)
m.einsum('...i',a)
m.einsum('i...j...->',a)
m.einsum('...->......',a)
m.einsum('ii->i',a)
m.einsum('ii',S)
m.einsum('iij->ji',B.permute(0,2,1)[:,:3])
m.einsum('iii',C)
m.einsum('',z)
m.einsum(',->',z,z)
m.einsum('i,j->ij',v,m.ones(3).long())
m.einsum('i,i',v,m.ones(3).double())
m.einsum('i,i',v.bool(),v.bool())
m.einsum('ij')
m.einsum(3,a)
m.einsum('ij',3)
m.einsum('ij,ij->ij',a[:,:1],a)
m.einsum('ij,jk->ik',a[:,:1],b)
m.einsum('bA,ab',a,S[:,:2])
m.einsum('i j , j k -> i k',a,b)
m.einsum('ij...,jk...->ik...',a,b)
m.einsum('i,i->i',v.bool(),v.bool())
m.einsum('i->i',v.bool())
m.einsum('i->',v.bool())
m.einsum('i->',v.to(m.uint8))
m.einsum('i,i->i',v.to(m.uint8),v.to(m.uint8))
m.einsum('i,i',m.ones(3),m.ones(4))
m.einsum('ijb,jkb->ikb',B.permute(1,2,0),B.permute(2,1,0))
m.einsum('bi,bi->b',v[:2,None].long(),v[:2,None].long())
m.einsum('...ij,...jk->...ik',D[:,None],D.transpose(1,2))
m.einsum('i,i->',e[:,0],e[:,0])
m.outer(a,v)
v.outer(3)
m.dot(v,3)
m.dot(v,v)
m.dot(v,v.long())
m.dot(a,v)
m.dot(v,v[:2])
m.dot(v.bool(),v.bool())
m.outer(v,v)
m.outer(v.bool(),v.bool())
m.mv(a,v)
m.mv(a,3)
m.mv(3,v)
m.mv(v,v)
m.mv(a,v[:2])
m.mv(a,v.long())
m.inner(a,b)
m.inner(a,z)
m.inner(v,v.long())
m.inner(a,3)
m.inner(v.bool(),v.bool())
m.addmm(v*n,a,S,beta=0,alpha=2)
m.addmm(v,a,S,beta=2,alpha=0.5)
m.addmm(v,a,a)
m.addmm(v[:2],a,S)
m.addmm(v.long(),a,S)
m.addmm(v,v,S)
m.addmm(v.long(),a.long(),S.long(),alpha=2.5)
m.addmm(m.ones(1,1,3),a,S)
m.addmm(z,a,S)
m.addmm(v,a,3)
m.addmm(3,a,b)
m.addmm(v,a,m.ones(3,3,1))
m.zeros(2,3).addmm_(a,S)
m.zeros(2,2,2).baddbmm_(B[:,:2],B[:,:2].transpose(1,2),beta=0)
m.addmm(v.bool(),a.bool(),S.bool())
m.baddbmm(v[:2],B,B.transpose(1,2)[:,:,:2],alpha=3)
m.baddbmm(v,B,B)
m.baddbmm(v,B,m.ones(3,2,3))
m.baddbmm(v,a,m.ones(3,2,3))
m.baddbmm(m.ones(4),D,D.transpose(1,2))
m.addmv(v[:2],a,v,beta=2,alpha=3)
m.addmv(v,a,v)
m.addmv(z,a,v)
m.tensordot(a,b,1)
m.tensordot(a,a,([0,1],[0,1]))
m.tensordot(C,C,([2,0],[1,2]))
m.tensordot(a,a,([0],[0,1]))
m.tensordot(a,a,([0],[1]))
m.tensordot(a,a,0)
m.tensordot(a,a,-1)
m.tensordot(a,a,3)
m.tensordot(a,b,'a')
m.tensordot(a,b,([1,1],[0,0]))
m.tensordot(a,b,([5],[0]))
m.tensordot(a,b,([-1],[-2]))
m.tensordot(a,b.double(),1)
m.cdist(a,S)
m.cdist(a,S,p=inf)
m.cdist(a,S,p=3.)
m.cdist(D,D[:1,:2])
m.cdist(a,b)
m.cdist(v,b)
m.cdist(a,S.double())
m.cdist(a.long(),S)
m.cdist(a,S,p=-1)
m.cdist(m.ones(2,0),m.ones(3,0))
m.cdist(e,S)
F.normalize(a,p=1,dim=0)
F.normalize(a*0)
F.normalize(v.long(),dim=0)
F.normalize(v,dim=-1,p=3)
F.normalize(C,dim=(0,2))
F.cosine_similarity(a[:,None],S[None],dim=-1)
F.cosine_similarity(v.long(),v.long(),0)
F.cosine_similarity(v,v.double(),0)
F.cosine_similarity(v,v*0,0)
F.cosine_similarity(v,v,dim=1)
""".strip().splitlines()
