(** Fractions with an odd denominator never meet a rounding boundary (docs/arithmetic.md, 3).

    A value v = n/b with an odd b > 0 lies at least 1/(2b) away from every k + 1/2. Whatever lies nearer to v than that
    is rounded to the same integer, whichever way ties go. *)

From Coq Require Import ZArith Reals Lia Lra.
From Flocq Require Import Core.
Open Scope R_scope.

Section TieFree.

Variables (n b : Z).
Hypothesis positive : (0 < b)%Z.
Hypothesis odd : Z.odd b = true.

Let v := IZR n / IZR b.

Lemma positive_real : 0 < IZR b.
Proof. apply IZR_lt; exact positive. Qed.

(** 2n = (2k + 1)b has no solution: the left side is even, the right side odd. *)
Lemma no_solution (k : Z) : (2 * n <> (2 * k + 1) * b)%Z.
Proof.
intros same. apply (f_equal Z.odd) in same.
rewrite !Z.odd_mul, Z.odd_add, Z.odd_mul, odd in same. discriminate.
Qed.

Theorem no_tie (k : Z) : v <> IZR k + / 2.
Proof.
intros tie. apply (no_solution k). pose proof positive_real.
apply eq_IZR. rewrite !mult_IZR, plus_IZR, mult_IZR.
assert (IZR n = v * IZR b) as -> by (unfold v; field; lra).
rewrite tie. lra.
Qed.

Theorem distance (k : Z) : / (2 * IZR b) <= Rabs (v - (IZR k + / 2)).
Proof.
pose proof positive_real as p.
replace (v - (IZR k + / 2)) with (IZR (2 * n - (2 * k + 1) * b) * / (2 * IZR b)).
2:{ unfold v. rewrite minus_IZR, !mult_IZR, plus_IZR, mult_IZR. field. lra. }
rewrite Rabs_mult, (Rabs_pos_eq (/ _)) by (apply Rlt_le, Rinv_0_lt_compat; lra).
rewrite <- (Rmult_1_l (/ (2 * IZR b))) at 1.
apply Rmult_le_compat_r; [apply Rlt_le, Rinv_0_lt_compat; lra |].
rewrite <- abs_IZR. apply IZR_le.
assert (2 * n - (2 * k + 1) * b <> 0)%Z by (intros zero; apply (no_solution k); lia).
lia.
Qed.

(** The integer k nearest to v is the one with k - 1/2 < v < k + 1/2, and so it is for everything near v. *)
Theorem same_integer (choice choice' : Z -> bool) (y : R) :
  Rabs (y - v) < / (2 * IZR b) -> Znearest choice y = Znearest choice' v.
Proof.
intros near. set (k := Znearest choice' v).
assert (half : Rabs (v - IZR k) <= / 2) by (apply Znearest_half).
pose proof (distance k) as above. pose proof (distance (k - 1)) as below.
rewrite minus_IZR in below.
apply Znearest_imp. revert half near above below. unfold Rabs.
repeat (destruct Rcase_abs); intros; lra.
Qed.

End TieFree.
