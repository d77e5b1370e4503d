"""Calls of linear algebra, evaluated with torch and with this package.

``m`` is the package, ``L`` its ``linalg``; ``A`` and ``S`` are square, ``S`` positive definite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_RNG = np.random.default_rng(1)
_ARRAYS = {
    "A": _RNG.standard_normal((2, 3, 3)),
    "B": _RNG.standard_normal((2, 3, 2)),
    "v": _RNG.standard_normal(3),
    "W": _RNG.standard_normal((2, 4, 3)),
}


def _recomposed(parts: Any) -> Any:
    """A function of the factors in which their signs do not matter."""
    if len(parts) == 2:
        values, vectors = parts
        return (vectors * (values / (1 + values.abs()))[..., None, :]) @ vectors.mT
    left, values, right = parts
    k = values.shape[-1]
    return (left[..., :k] * (values / (1 + values.abs()))[..., None, :]) @ right[..., :k, :]


def _checked(parts: Any) -> tuple[Any, ...]:
    """The values, and what all make together."""
    return parts[len(parts) - 2 if len(parts) == 2 else 1], _recomposed(parts)


def names(m: Any) -> dict[str, Any]:
    """What the calls refer to."""
    given = {name: m.tensor(array) for name, array in _ARRAYS.items()}
    square = given["A"]
    positive = square @ square.mT + 3 * m.eye(3, dtype=m.float64)
    nan = float("nan")
    given["recomposed"] = _checked
    return {**given, "m": m, "L": m.linalg, "t": m.tensor, "I": m.eye(2), "S": positive, "n": nan}


TRIANGULAR = """
L.cholesky(S)
L.cholesky(S,upper=True)
L.cholesky(-S)
L.cholesky_ex(S)
L.cholesky_ex(t([[1.,2.],[2.,1.]]))
L.cholesky_ex(t([[1.,2.],[2.,1.]]),check_errors=True)
L.cholesky(m.ones(2,3))
L.cholesky(m.ones(3))
L.cholesky(I.long())
L.cholesky(3)
L.cholesky(m.ones(0,0))
L.cholesky(m.ones(3,0,0))
L.cholesky(m.ones(0,2,2))
m.cholesky(S)
m.cholesky(S,True)
m.cholesky(-I)
m.cholesky(m.ones(2,3))
m.cholesky(I.long())
S.cholesky()
m.cholesky_solve(B,L.cholesky(S))
m.cholesky_solve(B,L.cholesky(S,upper=True),True)
B.cholesky_solve(L.cholesky(S))
m.cholesky_solve(m.ones(2),I)
m.cholesky_solve(m.ones(3,1),I)
m.cholesky_solve(m.ones(2,1),m.ones(2,3))
m.cholesky_solve(m.ones(2,1,dtype=m.float64),I)
m.cholesky_solve(m.ones(2,1,dtype=m.int64),I.long())
m.cholesky_solve(m.ones(4,1,2,1),m.eye(2).expand(3,2,2))
m.cholesky_inverse(L.cholesky(S))
L.cholesky(S,upper=True).cholesky_inverse(upper=True)
m.cholesky_inverse(m.ones(2,3))
m.cholesky_inverse(m.ones(3))
m.cholesky_inverse(I.long())
m.cholesky_inverse(t([[2.,9],[1,0]]))
L.solve_triangular(A,B,upper=True)
L.solve_triangular(A,B,upper=False)
L.solve_triangular(A,B.mT,upper=False,left=False)
L.solve_triangular(A,B.mT,upper=True,left=False,unitriangular=True)
L.solve_triangular(A[0],B,upper=True)
L.solve_triangular(A,B[1],upper=True)
L.solve_triangular(A[:,None],B,upper=True)
L.solve_triangular(I,m.ones(2),upper=True)
L.solve_triangular(m.ones(2,3),m.ones(2,1),upper=True)
L.solve_triangular(I,m.ones(3,1),upper=True)
L.solve_triangular(I,m.ones(3,1),upper=True,left=False)
L.solve_triangular(I.long(),m.ones(2,1).long(),upper=True)
L.solve_triangular(m.zeros(2,2),m.ones(2,1),upper=True)
L.solve_triangular(m.ones(3,2,2),m.ones(4,2,1),upper=True)
L.solve_triangular(m.ones(3),m.ones(4,2,1),upper=True)
L.solve_triangular(I,m.ones(2,0),upper=True)
L.solve_triangular(m.ones(0,0),m.ones(0,2),upper=True)
m.triangular_solve(B,A)
m.triangular_solve(B,A,False,True,True)
m.triangular_solve(m.ones(4,3,1),m.eye(3))
m.triangular_solve(m.ones(3,1),m.eye(3).repeat(2,1,1))
m.triangular_solve(m.ones(2,1),m.ones(2,3))
m.triangular_solve(m.ones(2),m.ones(2,2))
m.triangular_solve(m.ones(3,1),m.ones(2,2))
L.cholesky(t([[4.,n],[2,5]]))
L.cholesky(t([[n,1],[2,5]]))
"""

ELIMINATED = """
L.solve(A,B)
L.solve(A,v)
L.solve(A[0],v)
L.solve(A,B.mT,left=False)
L.solve(A[:,None],B)
L.solve(A,A[:,0])
L.solve(I*0,I)
L.solve(m.stack([I,I*0]),m.ones(2,2,1))
L.solve(m.ones(2,3),I)
L.solve(I,m.ones(3,1))
L.solve(I,m.ones(3))
L.solve(I,m.ones(2).double())
L.solve(I.long(),I.long())
L.solve(m.ones(3),I)
L.solve(3,I)
L.solve(I,m.ones(()))
L.solve(I,m.ones(2),left=False)
L.solve_ex(A,B)
L.solve_ex(t([[1.,2],[2,4]]),I)
L.solve_ex(t([[1.,2],[2,4]]),I,check_errors=True)
L.inv(A)
A.inverse()
m.inverse(A)
L.inv(m.ones(3,2,2))
m.inverse(m.ones(2,3))
L.inv(I.long())
L.inv(m.ones(2))
L.inv_ex(A)
L.inv_ex(t([[1.,2],[2,4]]))
L.inv_ex(t([[1.,2],[2,4]]),check_errors=True)
L.det(A)
m.det(A[0])
A.det()
L.det(t([[1.,2],[2,4]]))
L.det(m.ones(2,3))
m.det(I.long())
L.det(m.ones(0,0))
m.det(m.full((2,2),n))
L.slogdet(A)
A.slogdet()
m.slogdet(m.ones(2,0,0))
L.slogdet(t([[1.,2],[2,4]]))
m.slogdet(m.ones(2,3))
L.slogdet(I.long())
m.logdet(A)
S.logdet()
m.logdet(-I)
m.logdet(m.ones(2))
m.logdet(I.long())
m.logdet(t([[1.,2],[2,4]]))
m.logdet(t([[1.,0],[0,-4]]))
L.lu_factor(A)
L.lu_factor(W)
L.lu_factor(W.mT)
L.lu_factor(I*0)
L.lu_factor(m.ones(2,3))
L.lu_factor(m.ones(3))
L.lu_factor(I.long())
L.lu_factor(A,pivot=False)
L.lu_factor_ex(t([[1.,2],[2,4]]))
L.lu_factor(m.ones(0,3))
L.lu(A)
L.lu(W)
L.lu(W.mT)
L.lu(m.ones(3))
L.lu(m.ones(0,3))
L.lu(m.ones(3,0))
L.lu(I.long())
L.lu(A,pivot=False)
L.matrix_power(A,3)
A.matrix_power(5)
m.matrix_power(A,0)
L.matrix_power(A,-2)
L.matrix_power(A,1)
L.matrix_power(m.ones(2,2),-1)
L.matrix_power(m.ones(2,3),2)
L.matrix_power(m.ones(2),2)
L.matrix_power(I.long(),2)
L.matrix_power(I,2.5)
L.matrix_power(I.long(),-2)
L.multi_dot([I])
L.multi_dot([])
L.multi_dot([A[0],A[1],v])
L.multi_dot([v,A[1],v])
L.multi_dot([v,A[1]])
L.multi_dot([m.ones(10,3),m.ones(3,7),m.ones(7,2),m.ones(2,9)])
L.multi_dot([m.ones(2),m.ones(2,2,1)])
L.multi_dot([I,m.ones(2,2,2),I])
L.multi_dot([I,m.ones(3,2),I])
m.chain_matmul(A[0],A[1],A[0])
m.chain_matmul(I)
m.chain_matmul(I,m.ones(2))
L.multi_dot([I,I.double()])
L.multi_dot([m.ones(3),I])
L.multi_dot([I,3])
L.cholesky(I,upper=1)
L.inv(m.ones(0,0))
L.solve(m.ones(0,0),m.ones(0,3))
L.solve(m.ones(3,3),m.ones(3,0))
L.solve(m.eye(3),m.ones(3,0))
"""

ORTHOGONAL = """
L.qr(A)
L.qr(W)
L.qr(W.mT)
L.qr(W,'complete')
L.qr(W,'r')
L.qr(W,mode='x')
L.qr(m.ones(3))
L.qr(I.long())
L.qr(3)
L.qr(m.zeros(0,3))
L.qr(m.zeros(3,0),'complete')
L.qr(m.zeros(3,0))
L.qr(m.zeros(3,3))
L.qr(t([[1.,2.],[0,0]]))
m.qr(W)
m.qr(W,some=False)
m.qr(m.ones(3))
W.qr()
recomposed(L.eigh(S))
recomposed(L.eigh(S,'U'))
recomposed(L.eigh(S.float(),UPLO='u'))
recomposed(L.eigh(m.eye(3)))
recomposed(L.eigh(m.zeros(4,4)))
recomposed(L.eigh(m.ones(4,4)))
recomposed(L.eigh(t([[1e30,1e29],[1e29,-1e30]])))
recomposed(L.eigh(m.diag(t([3.,1,2]))))
L.eigh(m.zeros(0,0))
L.eigh(S,'X')
L.eigh(m.ones(2,3))
L.eigh(I.long())
L.eigh(m.ones(2))
L.eigh(I*n)
L.eigvalsh(S)
L.eigvalsh(A,'U')
L.eigvalsh(m.ones(2,3))
L.eigvalsh(I*n)
recomposed(L.svd(A))
recomposed(L.svd(W,full_matrices=False))
recomposed(L.svd(W.mT,False))
recomposed(L.svd(m.zeros(3,2),False))
recomposed(L.svd(m.ones(3,3)))
recomposed(L.svd(t([[1e30,1e29],[1e29,-1e30]])))
recomposed(L.svd(m.eye(3)*1e-30))
[x.shape for x in L.svd(W)]
[x.shape for x in L.svd(W.mT)]
[x.shape for x in m.svd(W)]
[x.shape for x in m.svd(W.mT,some=False)]
m.svd(W,compute_uv=False)
L.svd(m.zeros(0,3))
L.svd(m.zeros(0,3),full_matrices=False)
L.svd(I.long())
L.svd(m.ones(3))
L.svd(W,driver='gesvd')
m.svd(m.ones(2))
m.svd(I.long())
W.svd().S
L.svdvals(W)
L.svdvals(m.ones(2))
L.svdvals(I.long())
"""

BY_SINGULAR_VALUES = """
L.pinv(A)
L.pinv(W)
L.pinv(W.mT)
L.pinv(m.ones(3,2))
L.pinv(m.zeros(3,2))
L.pinv(I*2,atol=t([1.,3.]))
L.pinv(W,rtol=t([[0.001],[0.9],[0.5]]).double())
L.matrix_rank(I*2,atol=t([1.,3.]))
L.matrix_rank(W,t([[0.001],[0.9],[5.]]).double())
L.pinv(S,hermitian=True)
L.pinv(A,rtol=0.5)
L.pinv(A,atol=2.)
L.pinv(A,0.5)
L.pinv(A,rcond=.5)
L.pinv(A,rtol=t([0.1,0.9]))
L.pinv(A,atol=t([0.,1.9]))
L.pinv(m.zeros(0,3))
L.pinv(m.ones(2,3),hermitian=True)
L.pinv(I.long())
L.pinv(m.ones(2))
m.pinverse(W)
W.pinverse(0.5)
L.matrix_rank(m.ones(3,2))
L.matrix_rank(A)
L.matrix_rank(A,0.9)
L.matrix_rank(A,atol=0.9,rtol=0.)
L.matrix_rank(S,hermitian=True)
L.matrix_rank(m.ones(2))
L.matrix_rank(I.long())
L.matrix_rank(m.zeros(2,0,3))
L.cond(A)
L.cond(A,2)
L.cond(W,-2)
L.cond(A,'nuc')
L.cond(A,'fro')
L.cond(A,1)
L.cond(A,-1)
L.cond(A,float('inf'))
L.cond(A,3)
L.cond(A,'x')
L.cond(W,1)
L.cond(W)
L.cond(m.ones(2))
L.cond(I.long())
L.cond(m.ones(2,2),1)
L.cond(m.zeros(0,0))
L.cond(m.zeros(2,0,0),1)
L.matrix_norm(A,2)
L.matrix_norm(W,-2)
L.matrix_norm(A,'nuc')
L.matrix_norm(A,3)
L.matrix_norm(I.long(),1)
L.matrix_norm(I.long(),'nuc')
L.matrix_norm(I,2,dim=(0,0))
L.matrix_norm(I,1,dim=(1,-1))
L.matrix_norm(I,2,dim=(0,2))
L.matrix_norm(m.zeros(0,3),2)
L.matrix_norm(m.zeros(2,3,0),2,keepdim=True)
L.matrix_norm(m.zeros(2,0,0),'nuc')
m.norm(I,'nuc')
m.norm(W,'nuc',dim=(2,0),keepdim=True)
m.norm(W,'nuc')
m.norm(W,'nuc',dim=1)
m.norm(v,'nuc')
m.norm(I.long(),'nuc')
W.norm('nuc',(0,1))
W.norm('nuc',(0,1),dtype=m.float64)
L.matrix_norm(W,2,dim=(0,2))
L.matrix_norm(W,'nuc',dim=(2,0),keepdim=True)
L.norm(A[0],'nuc')
L.norm(A[0],2)
L.norm(W,-2,(0,1))
L.lstsq(W,W[:,:,:1])
L.lstsq(W,W[:,:,0])
L.lstsq(A,B)
L.lstsq(W.mT,B)
L.lstsq(m.ones(3,2),m.ones(3,1))
L.lstsq(A[0],v)
L.lstsq(W,W[:,:,:2],driver='gels')
L.lstsq(W.mT,B,driver='gels')
L.lstsq(m.ones(3,2),m.ones(2,1))
L.lstsq(m.ones(3,2).double(),m.ones(3,1))
L.lstsq(I.long(),I.long())
L.lstsq(m.ones(3),I)
L.lstsq(I,m.tensor(1.))
L.lstsq(m.ones(2,3,3),m.ones(3))
L.lstsq(I,m.ones(4,3,2))
L.lstsq(I,I,driver='x')
"""

GRADIENTS: dict[str, Any] = {
    "cholesky": lambda m, A, B, S: m.linalg.cholesky(S),
    "cholesky upper": lambda m, A, B, S: m.linalg.cholesky(S, upper=True),
    "cholesky_solve": lambda m, A, B, S: m.cholesky_solve(B, m.linalg.cholesky(S)),
    "cholesky_solve upper": lambda m, A, B, S: m.cholesky_solve(B, A.triu(), True),
    "cholesky_inverse": lambda m, A, B, S: m.cholesky_inverse(A.tril()),
    "solve_triangular": lambda m, A, B, S: m.linalg.solve_triangular(A, B, upper=True),
    "solve_triangular unit": lambda m, A, B, S: m.linalg.solve_triangular(
        A[:, None], B, upper=False, unitriangular=True
    ),
    "solve_triangular right": lambda m, A, B, S: m.linalg.solve_triangular(
        A, B.mT, upper=False, left=False
    ),
    "triangular_solve": lambda m, A, B, S: m.triangular_solve(B, A, transpose=True)[0],
    "solve": lambda m, A, B, S: m.linalg.solve(A, B),
    "solve right": lambda m, A, B, S: m.linalg.solve(A[0], B.mT, left=False),
    "solve vector": lambda m, A, B, S: m.linalg.solve(A, B[:, :, 0]),
    "inv": lambda m, A, B, S: m.linalg.inv(A),
    "det": lambda m, A, B, S: m.linalg.det(A) * B[:, 0, 0],
    "slogdet": lambda m, A, B, S: m.slogdet(A)[1],
    "logdet": lambda m, A, B, S: m.logdet(S),
    "lu_factor": lambda m, A, B, S: m.linalg.lu_factor(A)[0],
    "lu_factor tall": lambda m, A, B, S: m.linalg.lu_factor(m.cat([A, B], 2).mT)[0],
    "lu_factor wide": lambda m, A, B, S: m.linalg.lu_factor(m.cat([A, B], 2))[0],
    "lu": lambda m, A, B, S: m.linalg.lu(A)[1] @ m.linalg.lu(B)[1],
    "lu U": lambda m, A, B, S: m.linalg.lu(B.mT)[2],
    "matrix_power": lambda m, A, B, S: m.matrix_power(A, 3) + m.matrix_power(A, -1),
    "qr": lambda m, A, B, S: m.linalg.qr(A)[0] + m.linalg.qr(A)[1],
    "qr tall": lambda m, A, B, S: m.linalg.qr(B)[0] @ m.linalg.qr(B)[1].cos(),
    "qr wide": lambda m, A, B, S: m.linalg.qr(B.mT)[0] @ m.linalg.qr(B.mT)[1].cos(),
    "qr complete": lambda m, A, B, S: m.linalg.qr(A, "complete")[1].cos(),
    "eigh of a triangle": lambda m, A, B, S: _recomposed(m.linalg.eigh(A)),
    "eigh": lambda m, A, B, S: _recomposed(m.linalg.eigh(S)),
    "eigvalsh": lambda m, A, B, S: m.linalg.eigvalsh(S, "U"),
    "svd": lambda m, A, B, S: _recomposed(m.linalg.svd(A)),
    "svd tall": lambda m, A, B, S: _recomposed(m.linalg.svd(B, False)),
    "svd wide": lambda m, A, B, S: _recomposed(m.linalg.svd(B.mT, False)),
    "svdvals": lambda m, A, B, S: m.linalg.svdvals(B),
    "pinv": lambda m, A, B, S: m.linalg.pinv(B),
    "pinv wide": lambda m, A, B, S: m.linalg.pinv(B.mT),
    "pinv symmetric": lambda m, A, B, S: m.linalg.pinv(S, hermitian=True),
    "lstsq": lambda m, A, B, S: m.linalg.lstsq(B, A).solution,
    "lstsq gels": lambda m, A, B, S: m.linalg.lstsq(B, A, driver="gels").solution,
    "lstsq wide": lambda m, A, B, S: m.linalg.lstsq(B.mT, A[:, :2]).solution,
    "cond": lambda m, A, B, S: m.linalg.cond(A),
    "matrix_norm": lambda m, A, B, S: m.linalg.matrix_norm(A, "nuc") + m.linalg.norm(A[0], -2),
    "multi_dot": lambda m, A, B, S: m.linalg.multi_dot([A[0], A[1], B[0], B[1].mT]),
}
